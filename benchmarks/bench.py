# SPDX-License-Identifier: Apache-2.0
"""Measures this package and the released peer on the same machine and in the same run.

    python benchmarks/bench.py --package-python ours=.venv/bin/python \
        --package-python peer=/path/to/peer/bin/python --repeats 3

Every case runs in a fresh process of each interpreter, A B A B; medians are compared. The cases use
only features of both packages, unless a description says otherwise. The results are written to
`benchmarks/results/` as `benchmark.json` and `benchmark.md`.
"""

from __future__ import annotations

import argparse
import fnmatch
import pathlib
import sys

import cases
import report
import runner

_RESULTS = pathlib.Path(__file__).with_name("results")


def main() -> int:
    """Runs the selected cases. Returns 1 if one failed to run, else 0."""
    arguments = _parsed()
    chosen = _chosen(arguments.case)
    if arguments.list:
        for case in chosen:
            print(f"{case.name:44} {case.description}")
        return 0
    if not chosen:
        print(f"no case matches {arguments.case}; --list shows them", file=sys.stderr)
        return 2
    packages = arguments.package_python or [runner.Package("this", sys.executable)]
    quick = arguments.quick
    environment = report.environment(packages, repeats=arguments.repeats, quick=quick)
    results = runner.run(packages, chosen, repeats=arguments.repeats, quick=quick)
    rows = report.rows(results, chosen, packages, quick=quick)
    print(report.text(rows, packages, results))
    report.save(arguments.output, rows, packages, results, environment)
    print(f"\nwritten to {arguments.output}", file=sys.stderr)
    return 1 if results.failures else 0


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--package-python",
        action="append",
        type=runner.Package.parse,
        metavar="LABEL=PATH",
        help="an interpreter to measure; the ratio is the first one's to the second's "
        "(default: this interpreter alone)",
    )
    parser.add_argument(
        "--case", action="append", metavar="PATTERN", help="only these, for example 'insert_*'"
    )
    parser.add_argument("--repeats", type=int, default=3, help="times each case runs (default 3)")
    parser.add_argument("--quick", action="store_true", help="short measurements and small tables")
    parser.add_argument("--output", type=pathlib.Path, default=_RESULTS, help="where reports go")
    parser.add_argument("--list", action="store_true", help="print the cases and leave")
    return parser.parse_args()


def _chosen(patterns: list[str] | None) -> list[cases.Case]:
    if not patterns:
        return list(cases.ALL)
    return [
        case
        for case in cases.ALL
        if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)
    ]


if __name__ == "__main__":
    sys.exit(main())
