# SPDX-License-Identifier: Apache-2.0
"""The description of a case."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import measure


@dataclasses.dataclass(frozen=True)
class Metric:
    """One figure that a case reports, with its target.

    Attributes:
      name: Name within the case.
      unit: Unit of the value.
      lower_is_better: True for times and sizes.
      target_ratio: The first package's value divided by the second's should be at least this (at
        most, if lower is better). `None`: no target.
      limit: The value itself should be at least (at most) this. Except for times it is not judged
        in a quick run, because its tables are too small and its measurements too short.
    """

    name: str
    unit: str
    lower_is_better: bool = False
    target_ratio: float | None = None
    limit: float | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One benchmark.

    Attributes:
      name: Name on the command line.
      description: One sentence about the measurement.
      run: Runs the case and returns a figure for every metric.
      metrics: The metrics that it reports.
      needs: Modules that are required; without them the case is skipped.
    """

    name: str
    description: str
    run: Callable[[measure.Scale], Mapping[str, measure.Figure]]
    metrics: tuple[Metric, ...]
    needs: tuple[str, ...] = ()


def items_per_second(target_ratio: float | None = None, limit: float | None = None) -> Metric:
    """Returns the metric that most cases report."""
    return Metric("rate", "items/s", target_ratio=target_ratio, limit=limit)
