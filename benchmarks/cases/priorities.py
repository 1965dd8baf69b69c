# SPDX-License-Identifier: Apache-2.0
"""Updating priorities in batches of 256."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import actors
import measure
import numpy as np
from servers import TableSpec, open_server

from cases.case import Case, Metric

Figures = Mapping[str, measure.Figure]

BATCH = 256
_DIFFERENT_BATCHES = 16


def update_batches(client: Any, table: str = "table") -> list[dict[int, float]]:
    """Returns updates of items in the table, made in advance so that only the call is measured."""
    samples = client.sample(table, BATCH * _DIFFERENT_BATCHES, emit_timesteps=False)
    keys = [sample.info.key for sample in samples]
    priorities = np.random.default_rng(0).uniform(0.1, 10, len(keys)).tolist()
    updates = list(zip(keys, priorities, strict=True))
    return [dict(updates[i : i + BATCH]) for i in range(0, len(updates), BATCH)]


def measure_updates(
    client: Any, scale: measure.Scale, server_cpu: Any = lambda: 0.0
) -> measure.Figure:
    """Returns priority updates per second."""
    batches = update_batches(client)
    size = sum(len(batch) for batch in batches) / len(batches)

    def update(count: int) -> None:
        for i in range(count):
            client.mutate_priorities("table", updates=batches[i % len(batches)])

    figure = measure.rate(update, scale, server_cpu=server_cpu)
    # A small table gives a batch fewer than 256 distinct keys.
    return measure.Figure(
        figure.value * size,
        cpu_us=None if figure.cpu_us is None else figure.cpu_us / size,
        operations=figure.operations,
    )


def _updates(scale: measure.Scale, *, where: str, big: bool) -> Figures:
    items = scale.big_table if big else 1_000
    table = TableSpec(sampler="prioritized", max_size=max(items, 1_000))
    with open_server(where, [table]) as server:
        actors.fill(server.client, items)
        return {"rate": measure_updates(server.client, scale, server.cpu_seconds)}


def _metric(target_ratio: float | None = None) -> tuple[Metric]:
    return (Metric("rate", "updates/s", target_ratio=target_ratio),)


CASES = (
    Case(
        "update_priorities_1e3_remote",
        "mutate_priorities of 256 keys in a prioritized table of 1e3 items.",
        partial(_updates, where="remote", big=False),
        _metric(),
    ),
    Case(
        "update_priorities_1e3_in_process",
        "mutate_priorities of 256 keys out of 1e3; client and server in one process.",
        partial(_updates, where="in_process", big=False),
        _metric(),
    ),
    Case(
        "update_priorities_1e6_remote",
        "mutate_priorities of 256 keys in a prioritized table of 1e6 items (1e5 in a quick run).",
        partial(_updates, where="remote", big=True),
        _metric(target_ratio=4),
    ),
    Case(
        "update_priorities_1e6_in_process",
        "mutate_priorities of 256 keys out of 1e6; client and server in one process.",
        partial(_updates, where="in_process", big=True),
        _metric(target_ratio=4),
    ),
)
