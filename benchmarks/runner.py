# SPDX-License-Identifier: Apache-2.0
"""Runs each case in a fresh process of each package's interpreter, one package after the other."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from cases import Case

_CHILD = pathlib.Path(__file__).with_name("child.py")
_TIMEOUT_SECONDS = 900


@dataclasses.dataclass(frozen=True)
class Package:
    """A package to measure.

    Attributes:
      label: `ours`, `peer`, ...
      python: An interpreter whose `import reverb` gives that package.
    """

    label: str
    python: str

    @classmethod
    def parse(cls, text: str) -> Package:
        """Returns the package of `label=path`."""
        label, separator, python = text.partition("=")
        if not separator or not label or not python:
            raise ValueError(f"expected LABEL=PATH_TO_PYTHON, got {text!r}")
        # The cases run in another directory. A virtual environment needs its symbolic link.
        return cls(label, str(pathlib.Path(python).absolute()))

    def version(self) -> str:
        """Returns name and version of what `import reverb` imports there, and of Python."""
        return _run([self.python, str(_CHILD), "--version"]).strip()


@dataclasses.dataclass
class Results:
    """Every figure of a run.

    Attributes:
      figures: By case, metric and label, one figure per repeat, as JSON objects.
      failures: By case and label, the last lines of the error.
      skipped: By case and label, the reason.
    """

    figures: dict[tuple[str, str, str], list[dict[str, float | None]]] = dataclasses.field(
        default_factory=dict
    )
    failures: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    skipped: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)

    def median(self, case: str, metric: str, label: str, field: str = "value") -> float | None:
        """Returns the median over the repeats, or `None` when there is no figure."""
        figures = self.figures.get((case, metric, label), [])
        values = [figure[field] for figure in figures]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None


def run(
    packages: Sequence[Package], chosen: Sequence[Case], *, repeats: int, quick: bool
) -> Results:
    """Runs the cases and returns the figures. Repeats are the outer loop: A B A B, case by case."""
    results = Results()
    for repeat in range(repeats):
        for case in chosen:
            for package in packages:
                if (case.name, package.label) not in results.failures | results.skipped:
                    _run_once(package, case, results, quick=quick)
        print(f"repeat {repeat + 1} of {repeats} done", file=sys.stderr)
    return results


def _run_once(package: Package, case: Case, results: Results, *, quick: bool) -> None:
    command = [package.python, str(_CHILD), case.name, *(["--quick"] if quick else [])]
    started = time.monotonic()
    try:
        figures: Mapping[str, dict[str, float | None]] = json.loads(_run(command).splitlines()[-1])
    except (subprocess.SubprocessError, IndexError, ValueError) as error:
        results.failures[case.name, package.label] = _explained(error)
        print(f"  {case.name} {package.label}: FAILED", file=sys.stderr)
        return
    if "skipped" in figures:
        results.skipped[case.name, package.label] = str(figures["skipped"])
        print(f"  {case.name} {package.label}: skipped, {figures['skipped']}", file=sys.stderr)
        return
    for metric, figure in figures.items():
        results.figures.setdefault((case.name, metric, package.label), []).append(figure)
    shown = ", ".join(_shown(figures))
    elapsed = time.monotonic() - started
    print(f"  {case.name} {package.label}: {shown} [{elapsed:.0f} s]", file=sys.stderr, flush=True)


def _shown(figures: Mapping[str, dict[str, float | None]]) -> Iterator[str]:
    for metric, figure in figures.items():
        yield f"{metric} {figure['value']:,.4g}"


def _run(command: list[str]) -> str:
    """Returns what a child printed. Its working directory is not the source tree, on purpose."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Reduces the messages of TensorFlow, which the peer imports.
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_SECONDS,
        env=environment,
        cwd=_CHILD.parent,
    ).stdout


def _explained(error: Exception) -> str:
    output = getattr(error, "stderr", None) or ""
    if isinstance(output, bytes):
        output = output.decode(errors="replace")
    return "\n".join([str(error), *output.splitlines()[-15:]])
