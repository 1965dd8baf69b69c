# SPDX-License-Identifier: Apache-2.0
"""Inserting, sampling and updating as the table grows from 1e3 to 1e6 items."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import actors
import measure
import payloads
from servers import TableSpec, open_server

from cases.case import Case, Metric
from cases.priorities import measure_updates

_SAMPLES_PER_CALL = 256


def _table_of(scale: measure.Scale, *, items: int) -> Mapping[str, measure.Figure]:
    if items == 1_000_000:
        items = scale.big_table
    with open_server("remote", [TableSpec(sampler="prioritized", max_size=items)]) as server:
        client = server.client
        actors.fill(client, items)

        def sample(count: int) -> None:
            for _ in range(count):
                for _ in client.sample("table", _SAMPLES_PER_CALL):
                    pass

        updates = measure_updates(client, scale, server.cpu_seconds)
        samples = measure.rate(
            sample, scale, server_cpu=server.cpu_seconds, per_call=_SAMPLES_PER_CALL
        )
        # The table is full, so every insert evicts: the steady state of training.
        actor = actors.TrajectoryActor(client, payloads.SMALL)
        inserts = measure.rate(actor.write, scale, server_cpu=server.cpu_seconds)
    return {"insert": inserts, "sample": samples, "update": updates}


CASES = tuple(
    Case(
        f"table_of_1e{exponent}_remote",
        f"A full prioritized table of 1e{exponent} items: insert (and evict), sample, update.",
        partial(_table_of, items=10**exponent),
        (
            Metric("insert", "items/s"),
            Metric("sample", "items/s"),
            Metric("update", "updates/s"),
        ),
    )
    for exponent in (3, 4, 5, 6)
)
