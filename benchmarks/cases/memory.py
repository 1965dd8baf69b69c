# SPDX-License-Identifier: Apache-2.0
"""Memory of the server per stored item."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import actors
import measure
import payloads
from servers import TableSpec, open_server

from cases.case import Case, Metric

_WARM_UP_ITEMS = 2_000


def _per_item(
    scale: measure.Scale, *, payload: payloads.Payload, items: int | None, writers: int
) -> Mapping[str, measure.Figure]:
    count = (scale.big_table if items is None else items) // writers
    table = TableSpec(max_size=count * writers)
    with (
        open_server("remote", [table]) as server,
        actors.open_actors(
            writers, server.address, payload, warmup=_WARM_UP_ITEMS // writers
        ) as processes,
    ):
        # The fixed memory of threads, connections and code does not belong to the items.
        server.client.reset("table")
        before = server.resident_bytes()
        processes.write(count)
        size = server.client.server_info()["table"].current_size
        if size != count * writers:
            raise ValueError(f"the table holds {size} items and not {count * writers}")
        grown = server.resident_bytes() - before
    return {"per_item": measure.Figure(grown / size, operations=size)}


def _metric(target_ratio: float | None = None, limit: float | None = None) -> tuple[Metric]:
    return (
        Metric(
            "per_item", "bytes/item", lower_is_better=True, target_ratio=target_ratio, limit=limit
        ),
    )


CASES = (
    Case(
        "memory_small_1e6",
        "Resident memory of the server per small item, 1e6 items (1e5 in a quick run).",
        partial(_per_item, payload=payloads.SMALL, items=None, writers=4),
        _metric(target_ratio=0.1, limit=200),
    ),
    Case(
        "memory_atari_random",
        "Memory per item: 8,000 items of five overlapping frames of noise (a new one is 7 kB).",
        partial(_per_item, payload=payloads.ATARI_RANDOM, items=8_000, writers=2),
        _metric(),
    ),
    Case(
        "memory_atari_sparse",
        "Memory per item: 8,000 items of five overlapping, mostly black frames.",
        partial(_per_item, payload=payloads.ATARI_SPARSE, items=8_000, writers=2),
        _metric(),
    ),
)
