# SPDX-License-Identifier: Apache-2.0
"""Runs tests against the installed wheel in several environments.

    python tools/wheel_tests.py .venvs/tf-2.15 .venvs/tf-2.21
    python tools/wheel_tests.py .venvs/tf-2.15 --tests tests/with_tensorflow/test_tf_client.py
    python tools/wheel_tests.py .venvs/python3.13 --without-tensorflow

Runs the tests that concern TensorFlow, or all without it. Prints a table. Fails if a test failed in
one of the environments, or if no test of TensorFlow passed where there has to be one.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]

TENSORFLOW_TESTS = "tests/with_tensorflow"
VECTORS = "tests/conformance/vectors"
# These show that the package itself works beside TensorFlow, its protobuf and its NumPy.
GENERAL_TESTS = (
    "tests/api/test_client.py",
    "tests/package/test_import_time.py",
    "tests/package/test_protos.py",
    "tests/package/test_public_names.py",
    "tests/reading/test_round_trip.py",
    "tests/reading/test_sampling.py",
    "tests/writers/test_structured.py",
    "tests/writers/test_trajectory.py",
)
COLUMNS = ("environment", "TensorFlow", "Python", "NumPy", "passed", "skipped", "failed", "seconds")


def main() -> int:
    """Returns 0 if the tests passed in all environments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", nargs="+", type=pathlib.Path)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tests", nargs="+", help="instead of all that concern TensorFlow")
    which.add_argument(
        "--without-tensorflow", action="store_true", help="all tests, in environments without it"
    )
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        return run_inside(arguments.inside, arguments.tests)
    tests = arguments.tests or [TENSORFLOW_TESTS, VECTORS, *GENERAL_TESTS]
    if arguments.without_tensorflow:
        tests = ["tests"]
    rows = [run_in(environment, tests) for environment in arguments.environments]
    print_table(rows)
    complaints = [
        f"{row['environment']}: {row['complaint']}" for row in rows if row.get("complaint")
    ]
    print(*complaints, sep="\n", file=sys.stderr)
    return 1 if complaints else 0


def run_in(environment: pathlib.Path, tests: list[str]) -> dict[str, Any]:
    """Runs the tests with the interpreter of an environment; returns its row of the table."""
    print(f"\n==> {environment}", flush=True)
    row: dict[str, Any] = {"environment": environment.name}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        result = pathlib.Path(directory, "result.json")
        # This process and the children of tests must not have the source tree on their path.
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        python = environment.absolute() / "bin" / "python"
        status = subprocess.run(
            [python, __file__, environment, "--inside", result, "--tests", *tests],
            cwd=directory,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **variables, "PYTHONSAFEPATH": "1"},
            check=False,
        ).returncode
        if result.exists():
            row |= json.loads(result.read_text(encoding="utf-8"))
    row["seconds"] = round(time.monotonic() - started)
    if status != 0:
        row["complaint"] = f"failed with status {status}"
    elif TENSORFLOW_TESTS in tests and row["passed_with_tensorflow"] == 0:
        row["complaint"] = "no test of TensorFlow passed"
    return row


def run_inside(result: pathlib.Path, tests: list[str]) -> int:
    """Runs the tests in this process, whose interpreter is that of the environment."""
    import numpy as np
    import pytest

    import reverb

    installed = pathlib.Path(reverb.__file__)
    if not installed.is_relative_to(sys.prefix):
        raise SystemExit(f"import reverb gives {installed}, which is not the installed wheel")
    tally = Tally()
    paths = [str(ROOT / test) for test in tests]
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    status = pytest.main([*options, "-m", "not slow and not conformance", *paths], plugins=[tally])
    versions = {
        "TensorFlow": tensorflow_version(),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
    }
    result.write_text(json.dumps(versions | tally.counts()), encoding="utf-8")
    return int(status)


def tensorflow_version() -> str:
    """Returns the version of the environment's TensorFlow, or "none"."""
    try:
        import tensorflow as tf
    except ModuleNotFoundError:
        return "none"
    return tf.__version__


class Tally:
    """A pytest plugin that counts how tests end."""

    def __init__(self) -> None:
        self._ends: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Records the worst result of a test, including its setup and teardown."""
        worst = {"passed": 0, "skipped": 1, "failed": 2}
        before = self._ends.get(report.nodeid, "passed")
        self._ends[report.nodeid] = max(before, report.outcome, key=worst.__getitem__)

    def pytest_collectreport(self, report: Any) -> None:
        """Records files that cannot be imported or that skip themselves."""
        if report.outcome != "passed":
            self._ends[report.nodeid] = report.outcome

    def counts(self) -> dict[str, int]:
        """Returns the number of tests by result."""
        counter = Counter(self._ends.values())
        with_tensorflow = sum(
            end == "passed" and "tensorflow" in nodeid for nodeid, end in self._ends.items()
        )
        return {
            **{end: counter[end] for end in ("passed", "skipped", "failed")},
            "passed_with_tensorflow": with_tensorflow,
        }


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints one line for each environment."""
    lines = [COLUMNS, *([str(row.get(column, "?")) for column in COLUMNS] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    print()
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
