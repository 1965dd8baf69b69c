# SPDX-License-Identifier: Apache-2.0
"""Runs many random programs on both packages, and prints what was run and what differed.

    REVERB_PEER_PYTHON=... REVERB_OURS_TF_PYTHON=... python differential.py --programs 2000

Each difference is made small, printed, and stored in the folder that `--found` names; from there it
goes to `cases/` when it is mended. `python differential.py FILE...` runs stored programs again.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time

_HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parents[1])]

from comparison import Difference  # noqa: E402
from runner import Counts, Discarded, Runner  # noqa: E402
from script import describe  # noqa: E402
from search import random_program, shrink  # noqa: E402


def search(
    runner: Runner,
    programs: int,
    seed: int,
    found: pathlib.Path | None = None,
    minutes: float = float("inf"),
) -> list[tuple[str, str, int]]:
    """Runs random programs.

    Returns:
      Kind, description and number of occurrences of each difference.
    """
    counts: dict[str, int] = {}
    descriptions: dict[str, str] = {}
    end = time.monotonic() + minutes * 60
    for number in range(programs):
        if time.monotonic() > end:
            break
        program = random_program(seed, number)
        try:
            difference = runner.run(program)
        except Discarded as reason:
            _store(found, f"discarded-{seed}-{number}", program, str(reason))
            continue
        if difference is None:
            continue
        counts[difference.kind] = counts.get(difference.kind, 0) + 1
        if difference.kind not in descriptions:
            # Runs for shrinking are not counted.
            runner.counts, kept = Counts(), runner.counts
            program, difference = shrink(runner, program, difference)
            runner.counts = kept
            descriptions[difference.kind] = describe(program, difference)
            print(f"program {number}: {descriptions[difference.kind]}\n", flush=True)
            _store(found, f"difference-{seed}-{number}", program, difference.kind)
    return [(kind, descriptions[kind], count) for kind, count in counts.items()]


def replay(runner: Runner, case: pathlib.Path) -> Difference | None:
    """Runs a stored program."""
    return runner.run(json.loads(case.read_text())["program"])


def _store(folder: pathlib.Path | None, name: str, program: object, about: str) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"about": about, "program": program}, indent=1)
        (folder / f"{name}.json").write_text(text + "\n")


def _print_summary(runner: Runner, differences: list[tuple[str, str, int]]) -> None:
    print(f"{runner.counts.programs} programs ran on both packages")
    for reason, count in sorted(runner.counts.discarded.items()):
        print(f"{count} discarded: {reason}")
    print(f"{len(differences)} kinds of differences")
    for kind, _, count in differences:
        print(f"  {count} x {kind}")
    print("\nwhat the steps exercised: gave a result / raised / were skipped")
    for feature, endings in sorted(runner.counts.features.items()):
        figures = " / ".join(str(endings[ending]) for ending in ("done", "raised", "skipped"))
        print(f"  {feature:50} {figures}")


def main() -> int:
    """Runs the programs of the command line; fails if one differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", type=pathlib.Path, help="stored programs to run again")
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--found", type=pathlib.Path, help="where to store what differs")
    options = parser.parse_args()
    runner = Runner(os.environ["REVERB_OURS_TF_PYTHON"], os.environ["REVERB_PEER_PYTHON"])
    try:
        if options.cases:
            found = [(case, replay(runner, case)) for case in options.cases]
            for case, difference in found:
                text = "no difference"
                if difference is not None:
                    text = describe(json.loads(case.read_text())["program"], difference)
                print(f"{case}: {text}\n")
            return any(difference is not None for _, difference in found)
        differences = search(runner, options.programs, options.seed, options.found, options.minutes)
        _print_summary(runner, differences)
        return bool(differences)
    finally:
        runner.close()


if __name__ == "__main__":
    sys.exit(main())
