# SPDX-License-Identifier: Apache-2.0
"""Updating priorities in batches of 256."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import actors
import measure
from servers import TableSpec, open_server
from updaters import BATCH, Updater, open_updaters

from cases.case import Case, Metric

Figures = Mapping[str, measure.Figure]

_CLIENTS = 4


def measure_updates(
    client: Any,
    scale: measure.Scale,
    server_cpu: Callable[[], float] = lambda: 0.0,
    *,
    arrays: bool = False,
) -> measure.Figure:
    """Returns priority updates per second."""
    updater = Updater(client, arrays=arrays)
    figure = measure.rate(updater.update, scale, server_cpu=server_cpu)
    return measure.Figure(
        # A small table gives a batch fewer than 256 distinct keys.
        figure.value * updater.size,
        cpu_us=None if figure.cpu_us is None else figure.cpu_us / updater.size,
        operations=figure.operations,
    )


def _updates(scale: measure.Scale, *, where: str, big: bool, arrays: bool = False) -> Figures:
    items = scale.big_table if big else 1_000
    table = TableSpec(sampler="prioritized", max_size=max(items, 1_000))
    with open_server(where, [table]) as server:
        actors.fill(server.client, items)
        figure = measure_updates(server.client, scale, server.cpu_seconds, arrays=arrays)
    return {"rate": figure}


def _updates_of_several(scale: measure.Scale, *, arrays: bool) -> Figures:
    """Several processes update one table at the same time."""
    table = TableSpec(sampler="prioritized", max_size=scale.big_table)
    with open_server("remote", [table]) as server:
        actors.fill(server.client, scale.big_table)
        with open_updaters(_CLIENTS, server.address, arrays=arrays) as clients:
            calls = 1_000
            calls = max(calls, round(calls / clients.write(calls) * scale.seconds))
            seconds = clients.write(calls)
    return {"rate": measure.Figure(_CLIENTS * calls * BATCH / seconds, operations=calls)}


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
        "update_priorities_1e6_arrays_remote",
        "The same with arrays: update_priorities if the package has it, or a dict of them.",
        partial(_updates, where="remote", big=True, arrays=True),
        _metric(),
    ),
    Case(
        "update_priorities_1e6_4_clients",
        "mutate_priorities of 256 keys out of 1e6, in four processes at the same time.",
        partial(_updates_of_several, arrays=False),
        _metric(),
    ),
    Case(
        "update_priorities_1e6_arrays_4_clients",
        "The same with arrays.",
        partial(_updates_of_several, arrays=True),
        _metric(),
    ),
    Case(
        "update_priorities_1e6_in_process",
        "mutate_priorities of 256 keys out of 1e6; client and server in one process.",
        partial(_updates, where="in_process", big=True),
        _metric(target_ratio=4),
    ),
)
