# SPDX-License-Identifier: Apache-2.0
"""Runs pytest: most tests side by side, those marked `alone` after them, one by one.

A few that failed may run again; `flaky_tests.py` says when.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import flaky_tests

ROOT = pathlib.Path(__file__).parents[1]

# Exit codes of pytest; 0 means that all passed.
_TESTS_FAILED, _NO_TESTS = 1, 5
# Many tests wait for time to pass, so there are more workers than processors.
WORKERS = 2 * (os.cpu_count() or 1)
# A worker has whole files, because tests of a file share servers. They come in the order of
# `tests/conftest.py`. A worker that dies is not replaced.
_SIDE_BY_SIDE = ("--dist=loadfile", "--no-loadscope-reorder", "--max-worker-restart=0")
# Each test has a limit of its own. This one is for a run that does not end after its tests.
LIMIT_S = 1800
# How long processes that are ended have to write their stacks.
_STACKS_S = 2


def files_with_the_mark(mark: str, paths: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """Returns the files of tests that name a mark, so that not all are collected for a few."""
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return sorted(file for file in files if f"mark.{mark}" in file.read_text(encoding="utf-8"))


def descendants(pid: int) -> list[int]:
    """Returns the children of a process and theirs, which would run on without it (Linux)."""
    children = []
    for file in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, file.read_text(encoding="utf-8").split())
    return [*children, *(each for child in children for each in descendants(child))]


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of pytest that has ended: whether it passed, and the first outcome of each test."""

    passed: bool
    outcomes: Mapping[str, Mapping[str, str]]

    def counts(self, word: str = "") -> Counter[str]:
        """Returns how many tests ended how, of those with a word in their name."""
        return Counter(test["outcome"] for name, test in self.outcomes.items() if word in name)


@dataclasses.dataclass(frozen=True)
class Pytest:
    """An interpreter with pytest and this package, and how its tests are run.

    Attributes:
      stage: Name of the run in the list of flaky tests.
      python: The interpreter.
      options: Further options of pytest.
      directory: Working directory of the tests.
      environment: Environment variables of the tests.
      workers: How many processes share the tests that need not be alone.
      limit_s: How long each run of pytest may take, in seconds.
    """

    stage: str
    python: pathlib.Path
    options: Sequence[str] = ()
    directory: pathlib.Path = ROOT
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ))
    workers: int = WORKERS
    limit_s: float = LIMIT_S

    def run(self, tests: Sequence[str], marks: str) -> Run:
        """Runs tests; blocks until they have ended.

        Args:
          tests: Files and folders, relative to the root of the tree.
          marks: An expression over marks that chooses among them.
        """
        paths = [ROOT / test for test in tests]
        side_by_side = (f"--numprocesses={self.workers}", *_SIDE_BY_SIDE)
        outcomes = {}
        for expression, options, files in (
            (f"({marks}) and not alone", side_by_side, paths),
            (f"({marks}) and alone", (), files_with_the_mark("alone", paths)),
        ):
            if not files:
                continue
            status, new = self._pytest(["-m", expression, *options, *map(str, files)])
            outcomes |= new
            failed = any(test["outcome"] == "failed" for test in new.values())
            # Status 1 without a failed test has another cause.
            ended = status in (0, _NO_TESTS) or (status == _TESTS_FAILED and failed)
            if not ended or any(test["outcome"] == "crashed" for test in new.values()):
                return Run(False, outcomes)
        failures = {
            name: flaky_tests.Result(False, test["output"])
            for name, test in outcomes.items()
            if test["outcome"] == "failed"
        }
        if failures:
            return Run(flaky_tests.stage_passes(self.stage, failures, self._rerun), outcomes)
        return Run(any(test["outcome"] == "passed" for test in outcomes.values()), outcomes)

    def _rerun(self, names: Sequence[str]) -> dict[str, flaky_tests.Result]:
        _, outcomes = self._pytest([f"{ROOT}/{name}" for name in names])
        return {
            name: flaky_tests.Result(test["outcome"] == "passed", test["output"])
            for name, test in outcomes.items()
        }

    def _pytest(self, arguments: Sequence[str]) -> tuple[int | None, dict[str, dict[str, str]]]:
        """Returns the status, None if it had to be ended, and how each test ended."""
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "outcomes.json")
            process = subprocess.Popen(
                [self.python, "-m", "pytest", f"--outcomes={path}", *self.options, *arguments],
                cwd=self.directory,
                env={**self.environment, "PYTHONFAULTHANDLER": "1"},
            )
            try:
                status = process.wait(self.limit_s)
            except subprocess.TimeoutExpired:
                print(f"pytest did not end within {self.limit_s} s.", flush=True)
                pids = (process.pid, *descendants(process.pid))
                # To the first signal each answers with the stacks of its threads.
                _signal(pids, signal.SIGABRT)
                time.sleep(_STACKS_S)
                _signal(pids, signal.SIGKILL)
                process.wait()
                status = None
            outcomes = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return status, outcomes
