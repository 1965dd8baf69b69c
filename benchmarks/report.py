# SPDX-License-Identifier: Apache-2.0
"""The results as a table, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from cases import Case, Metric
from runner import Package, Results


@dataclasses.dataclass(frozen=True)
class Row:
    """One metric of one case, for all packages.

    Attributes:
      case: The case.
      metric: The metric.
      values: Median by label; `None` where it failed.
      cpu_us: Median CPU time per operation by label; `None` where it was not taken.
      ratio: First package divided by the second.
      verdict: `met`, `missed`, or empty when there is no target or no figure.
    """

    case: Case
    metric: Metric
    values: dict[str, float | None]
    cpu_us: dict[str, float | None]
    ratio: float | None
    verdict: str

    @property
    def name(self) -> str:
        """Case and metric in one word."""
        if len(self.case.metrics) == 1:
            return self.case.name
        return f"{self.case.name}.{self.metric.name}"

    @property
    def target(self) -> str:
        """The target as text."""
        relation = "<=" if self.metric.lower_is_better else ">="
        parts = []
        if self.metric.target_ratio is not None:
            parts.append(f"{relation} {self.metric.target_ratio:g} x")
        if self.metric.limit is not None:
            parts.append(f"{relation} {self.metric.limit:,.15g} {self.metric.unit}")
        return ", ".join(parts)


def rows(
    results: Results, chosen: Sequence[Case], packages: Sequence[Package], *, quick: bool
) -> list[Row]:
    """Returns one row per metric."""
    labels = [package.label for package in packages]
    made = []
    for case in chosen:
        for metric in case.metrics:
            values = {x: results.median(case.name, metric.name, x) for x in labels}
            cpu_us = {x: results.median(case.name, metric.name, x, "cpu_us") for x in labels}
            ratio = _ratio([values[label] for label in labels])
            verdict = _verdict(metric, ratio, values[labels[0]], quick=quick)
            made.append(Row(case, metric, values, cpu_us, ratio, verdict))
    return made


def _ratio(values: list[float | None]) -> float | None:
    if len(values) < 2 or values[0] is None or not values[1]:
        return None
    return values[0] / values[1]


def _verdict(metric: Metric, ratio: float | None, value: float | None, *, quick: bool) -> str:
    held = []
    if metric.target_ratio is not None and ratio is not None:
        held.append(_holds(metric, ratio, metric.target_ratio))
        judged_alone = metric.unit == "s" or not quick
        if metric.limit is not None and value is not None and judged_alone:
            held.append(_holds(metric, value, metric.limit))
    elif metric.target_ratio is None and metric.limit is not None and ratio is not None:
        # Without a second package there is no ratio, and `value` may be the peer's.
        held.append(value is not None and _holds(metric, value, metric.limit))
    if not held:
        return ""
    return "met" if all(held) else "missed"


def _holds(metric: Metric, value: float, bound: float) -> bool:
    return value <= bound if metric.lower_is_better else value >= bound


def text(made: Sequence[Row], packages: Sequence[Package], results: Results) -> str:
    """Returns the table for a terminal."""
    cells = [_heading(packages), *(_cells(row, packages) for row in made)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(_padded(line, widths)).rstrip() for line in cells]
    return "\n".join([*lines, *_unmeasured(results)])


def markdown(
    made: Sequence[Row], packages: Sequence[Package], results: Results, environment: dict[str, Any]
) -> str:
    """Returns the table as Markdown, with the information needed to repeat the run."""
    heading = _heading(packages)
    lines = [
        "# Benchmark",
        "",
        f"Command: `{environment['command']}`",
        "",
        f"{environment['date']}; {environment['machine']}; median of {environment['repeats']} "
        f"interleaved repeat(s){', quick' if environment['quick'] else ''}.",
        "",
        *(f"* {label}: {version}" for label, version in environment["packages"].items()),
        "",
        f"| {' | '.join(heading)} |",
        f"|{'---|' * len(heading)}",
        *(f"| {' | '.join(_cells(row, packages))} |" for row in made),
        "",
        "CPU is microseconds per operation, client and server together.",
        "",
        "## What each case does",
        "",
        *(f"* `{case.name}`: {case.description}" for case in _cases_of(made)),
        *_unmeasured(results),
    ]
    return "\n".join(lines) + "\n"


def save(
    directory: pathlib.Path,
    made: Sequence[Row],
    packages: Sequence[Package],
    results: Results,
    environment: dict[str, Any],
) -> None:
    """Writes `benchmark.json` and `benchmark.md` into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    report = markdown(made, packages, results, environment)
    (directory / "benchmark.md").write_text(report)
    document = {
        "environment": environment,
        "rows": [_row_json(row, results) for row in made],
        "failures": [
            {"case": case, "package": label, "error": error}
            for (case, label), error in results.failures.items()
        ],
        "skipped": [
            {"case": case, "package": label, "reason": reason}
            for (case, label), reason in results.skipped.items()
        ],
    }
    (directory / "benchmark.json").write_text(json.dumps(document, indent=2) + "\n")


def environment(packages: Sequence[Package], *, repeats: int, quick: bool) -> dict[str, Any]:
    """Returns where and how the figures were taken."""
    return {
        "command": shlex.join(["python", *_relative(sys.argv)]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}",
        "packages": {package.label: package.version() for package in packages},
        "repeats": repeats,
        "quick": quick,
    }


def _relative(arguments: list[str]) -> list[str]:
    """Shortens interpreter paths, which mean nothing on another machine."""
    return [
        f"{label}=PYTHON" if label in _LABELLED and separator else argument
        for argument in arguments
        for label, separator, _ in [argument.partition("=")]
    ]


_LABELLED = ("ours", "peer")


def _processor() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _heading(packages: Sequence[Package]) -> list[str]:
    labels = [package.label for package in packages]
    return ["case", "unit", *labels, *(f"{x} CPU" for x in labels), "ratio", "target", "verdict"]


def _cells(row: Row, packages: Sequence[Package]) -> list[str]:
    labels = [package.label for package in packages]
    return [
        row.name,
        row.metric.unit,
        *(_number(row.values[label]) for label in labels),
        *(_number(row.cpu_us[label]) for label in labels),
        "" if row.ratio is None else f"{row.ratio:.3g} x",
        row.target,
        row.verdict,
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Aligns name and unit to the left, and figures to the right."""
    return [
        cell.ljust(width) if i < 2 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]


def _unmeasured(results: Results) -> list[str]:
    return [
        *(f"\n{case} FAILED on {x}:\n{error}" for (case, x), error in results.failures.items()),
        *(f"\n{case} skipped on {x}: {why}" for (case, x), why in results.skipped.items()),
    ]


def _cases_of(made: Sequence[Row]) -> list[Case]:
    return list({row.case.name: row.case for row in made}.values())


def _row_json(row: Row, results: Results) -> dict[str, Any]:
    return {
        "case": row.case.name,
        "metric": row.metric.name,
        "unit": row.metric.unit,
        "description": row.case.description,
        "median": row.values,
        "cpu_us_per_operation": row.cpu_us,
        "repeats": {
            label: results.figures.get((row.case.name, row.metric.name, label), [])
            for label in row.values
        },
        "ratio": row.ratio,
        "target": row.target,
        "verdict": row.verdict,
    }
