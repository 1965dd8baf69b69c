# SPDX-License-Identifier: Apache-2.0
"""The latency of single calls on an idle server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import actors
import measure
import payloads
from servers import open_server

from cases.case import Case, Metric

Figures = Mapping[str, measure.Figure]

_ITEMS = 1_000


def _insert_and_flush(scale: measure.Scale, *, where: str) -> Figures:
    with open_server(where) as server:
        actor = actors.TrajectoryActor(server.client, payloads.SMALL)
        p50, p99 = measure.percentiles_us(lambda: actor.write(1), scale)
    return {"p50": p50, "p99": p99}


def _single_sample(scale: measure.Scale, *, where: str) -> Figures:
    with open_server(where) as server:
        actors.TrajectoryActor(server.client, payloads.SMALL).write(_ITEMS)

        def sample() -> None:
            for _ in server.client.sample("table", 1):
                pass

        p50, p99 = measure.percentiles_us(sample, scale)
    return {"p50": p50, "p99": p99}


def _metrics(
    target_ratio: float | None = None, limit: float | None = None
) -> tuple[Metric, Metric]:
    return (
        Metric("p50", "us", lower_is_better=True, target_ratio=target_ratio, limit=limit),
        Metric("p99", "us", lower_is_better=True),
    )


CASES = (
    Case(
        "latency_insert_flush_remote",
        "append, create_item and flush of one item.",
        partial(_insert_and_flush, where="remote"),
        _metrics(target_ratio=0.5),
    ),
    Case(
        "latency_insert_flush_in_process",
        "append, create_item and flush of one item; client and server in one process.",
        partial(_insert_and_flush, where="in_process"),
        _metrics(),
    ),
    Case(
        "latency_sample_remote",
        "client.sample(table, 1), the whole call.",
        partial(_single_sample, where="remote"),
        _metrics(target_ratio=0.5),
    ),
    Case(
        "latency_sample_in_process",
        "client.sample(table, 1); client and server in one process.",
        partial(_single_sample, where="in_process"),
        _metrics(),
    ),
)
