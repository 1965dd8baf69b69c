# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: the slowest files at the end of a run, and how each test ended, as a file.

`tools/pytest_runs.py` reads the file. `tests/conftest.py` adds the plugin.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections import Counter
from typing import Any

# How many files the end of a run names, so that growth is seen.
_SLOWEST = 10
# From best to worst. A worker of pytest-xdist that dies has crashed in its test.
_ORDER = ("passed", "skipped", "failed", "crashed")
_PHASES = ("setup", "call", "teardown")


def add_option(parser: Any) -> None:
    """Adds the option `--outcomes`."""
    parser.addoption("--outcomes", type=pathlib.Path, help="write how each test ended, as JSON")


def configure(config: Any) -> None:
    """Adds the plugin to a run; where the run has workers, only to the process that leads them."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(config.getoption("outcomes", None)), "outcomes")


@dataclasses.dataclass
class _Test:
    outcome: str = "passed"
    traces: list[str] = dataclasses.field(default_factory=list)
    # Titles and texts; each report repeats those of the phases before.
    printed: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def summary(self) -> dict[str, str]:
        printed = [f"---- {title} ----\n{text}" for title, text in self.printed]
        return {"outcome": self.outcome, "output": "\n".join([*self.traces, *printed])}


class Outcomes:
    """How the tests of a run ended.

    The file has, by the name of each test, its `outcome` (`passed`, `skipped`, `failed`, `crashed`)
    and its `output`: its tracebacks, and what it printed.
    """

    def __init__(self, path: pathlib.Path | None) -> None:
        self._path = path
        self._tests: dict[str, _Test] = {}
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Adds a phase of a test: its setup, its call or its teardown."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        self._add(report, report.outcome if report.when in _PHASES else "crashed")

    def pytest_collectreport(self, report: Any) -> None:
        """Adds a file that cannot be imported, or that skips itself."""
        if report.outcome != "passed":
            self._add(report, report.outcome)

    def pytest_sessionfinish(self) -> None:
        """Writes the file."""
        if self._path is not None:
            summaries = {name: test.summary() for name, test in self._tests.items()}
            self._path.write_text(json.dumps(summaries), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the slowest files."""
        slowest = self._seconds.most_common(_SLOWEST)
        if len(self._seconds) > 1:
            terminalreporter.section(f"slowest {len(slowest)} of {len(self._seconds)} files")
            for path, seconds in slowest:
                terminalreporter.write_line(f"{seconds:7.2f} s  {path}")

    def _add(self, report: Any, outcome: str) -> None:
        test = self._tests.setdefault(report.nodeid, _Test())
        test.outcome = max(test.outcome, outcome, key=_ORDER.index)
        if report.outcome == "failed":
            test.traces.append(report.longreprtext)
        test.printed = report.sections
