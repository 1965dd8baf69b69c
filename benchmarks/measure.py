# SPDX-License-Identifier: Apache-2.0
"""Measurements: rates over a calibrated number of operations, and percentiles."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured value.

    Attributes:
      value: In the unit of its metric.
      cpu_us: CPU time per operation in microseconds, client and server together.
      operations: Number of operations that were measured.
    """

    value: float
    cpu_us: float | None = None
    operations: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the figure as a JSON object."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much work a case does.

    Attributes:
      quick: Smaller tables and shorter measurements, to check that everything runs.
    """

    quick: bool = False

    @property
    def seconds(self) -> float:
        """Wall time of one measurement."""
        return 0.7 if self.quick else 3.0

    @property
    def warmup_seconds(self) -> float:
        """Wall time before it; also how long the calibration runs."""
        return 0.2 if self.quick else 0.7

    @property
    def big_table(self) -> int:
        """Number of items in the table of "1e6"."""
        return 100_000 if self.quick else 1_000_000

    @property
    def latency_calls(self) -> int:
        """Number of calls behind a percentile."""
        return 300 if self.quick else 2_000


def rate(
    operation: Callable[[int], None],
    scale: Scale,
    *,
    server_cpu: Callable[[], float] = lambda: 0.0,
    per_call: int = 1,
    at_most: int | None = None,
) -> Figure:
    """Measures operations per second.

    Args:
      operation: Does `n` operations and returns when they are complete (flushed, received).
      scale: How long to measure.
      server_cpu: Returns the CPU seconds used so far by a server in another process.
      per_call: Number of units per operation, for example the items of a batch.
      at_most: Upper bound for `n`.

    Returns:
      The rate, after a warm-up that also chooses `n` so that the measurement takes `scale.seconds`.
    """
    count = _calibrated(operation, scale, at_most)
    cpu_before = time.process_time() + server_cpu()
    started = time.perf_counter()
    operation(count)
    elapsed = time.perf_counter() - started
    cpu = time.process_time() + server_cpu() - cpu_before
    items = count * per_call
    return Figure(items / elapsed, cpu_us=cpu / items * 1e6, operations=items)


def percentiles_us(call: Callable[[], None], scale: Scale) -> tuple[Figure, Figure]:
    """Returns p50 and p99 of the duration of `call`, in microseconds."""
    for _ in range(scale.latency_calls // 5):
        call()
    durations = np.empty(scale.latency_calls)
    for i in range(len(durations)):
        started = time.perf_counter_ns()
        call()
        durations[i] = time.perf_counter_ns() - started
    p50, p99 = np.percentile(durations, [50, 99]) / 1e3
    calls = len(durations)
    return Figure(float(p50), operations=calls), Figure(float(p99), operations=calls)


def _calibrated(operation: Callable[[int], None], scale: Scale, at_most: int | None) -> int:
    """Warms up with growing counts and returns the count that takes `scale.seconds`."""
    count = 1
    until = time.perf_counter() + scale.warmup_seconds
    while True:
        started = time.perf_counter()
        operation(count)
        now = time.perf_counter()
        if now >= until and now - started >= scale.warmup_seconds / 4:
            needed = max(1, round(count / (now - started) * scale.seconds))
            return needed if at_most is None else min(needed, at_most)
        count = count * 4 if now - started < scale.warmup_seconds / 8 else count * 2
        if at_most is not None:
            count = min(count, at_most)
