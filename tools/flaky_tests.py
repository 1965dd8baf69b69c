# SPDX-License-Identifier: Apache-2.0
"""Tests that failed and then passed: which may run again, and how they are reported.

With `RERUN=1` in the environment, which `.ci/run` sets, a few tests that failed run again, alone,
after their stage has ended. If all pass then, the stage passes. Each such test is printed with both
outputs, and its name goes into a list.

    python tools/flaky_tests.py

Prints the list, with the tests that failed twice, and fails if too many are flaky.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

# With more failures in one stage, none runs again: they are not flaky.
MOST_FAILURES = 5
# A run fails if the list has this many names.
TOO_MANY = 3

_TARGET = pathlib.Path(__file__).parents[1] / "target"
_FLAKY, _FAILED = _TARGET / "flaky_tests.txt", _TARGET / "failed_tests.txt"


@dataclasses.dataclass(frozen=True)
class Result:
    """How a test ended, and its output: tracebacks and what it printed."""

    passed: bool
    output: str


def stage_passes(
    stage: str,
    failures: Mapping[str, Result],
    rerun: Callable[[Sequence[str]], Mapping[str, Result]],
) -> bool:
    """Returns whether a stage passes in which some tests failed.

    Args:
      stage: Name of the stage.
      failures: The tests that failed, by name. Tests that crashed are not for this function.
      rerun: Runs the tests of these names again, alone, and returns their results.
    """
    if os.environ.get("RERUN") != "1":
        return False
    if len(failures) > MOST_FAILURES:
        print(f"\n{len(failures)} tests failed; at most {MOST_FAILURES} run again.", flush=True)
        return False
    print("\n==> These tests failed and run again:", *failures, sep="\n    ", flush=True)
    results = rerun(list(failures))
    again = [name for name in failures if name not in results or not results[name].passed]
    if again:
        print("\nThese tests failed twice:", *again, sep="\n    ", flush=True)
        _add(_FAILED, stage, again)
        return False
    print(f"\n==> Flaky: {stage}")
    for name, failure in failures.items():
        print(f"\n{name}\n---- failed ----\n{failure.output}")
        print(f"---- passed when it ran again ----\n{results[name].output}", flush=True)
    _add(_FLAKY, stage, failures)
    return True


def _add(path: pathlib.Path, stage: str, names: Iterable[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{stage}: {name}\n" for name in names)


def _names(path: pathlib.Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> int:
    """Prints the list, and what failed twice; returns 1 if too many are flaky."""
    if failed := _names(_FAILED):
        print("Failed twice:", *failed, sep="\n", flush=True)
    names = _names(_FLAKY)
    if names:
        print("Flaky (failed once, then passed; see above under this heading):")
        print(*names, sep="\n", flush=True)
    if len(names) < TOO_MANY:
        return 0
    print(f"{len(names)} tests are flaky, {TOO_MANY} are too many.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
