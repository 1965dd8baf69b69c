# SPDX-License-Identifier: Apache-2.0
"""Steps that sample without a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tree
from values import encode_nest
from values import step as step_of
from world import SKIPPED, World, attempt


def _sample(world: World, step: dict[str, Any]) -> Any:
    if not world.may_sample(step["table"], step["count"]):
        return SKIPPED
    samples = world.client.sample(
        step["table"],
        step["count"],
        emit_timesteps=step["emit_timesteps"],
        unpack_as_table_signature=step["unpack"],
    )
    if step["emit_timesteps"]:
        return [[_replay(world, step["table"], part) for part in sample] for sample in samples]
    return [_replay(world, step["table"], sample) for sample in samples]


def encode_replay(world: World, table: str, sample: Any) -> Any:
    """Returns the info and the arrays of an item as JSON."""
    key, *others = sample.info
    return {
        "key": world.key(table, int(key)),
        "info": encode_nest(list(others)),
        "data": encode_nest(sample.data),
    }


def _replay(world: World, table: str, sample: Any) -> Any:
    info = sample.info
    return {
        "info": {
            "key": world.key(table, info.key),
            "probability": info.probability,
            "table_size": info.table_size,
            "priority": info.priority,
            "times_sampled": info.times_sampled,
            "types": [type(field).__name__ for field in info],
        },
        "data": encode_nest(sample.data),
    }


def _backpressure(world: World, step: dict[str, Any]) -> Any:
    """Writes more items to a queue than it takes, and samples all of them."""
    table, count = step["table"], step["count"]
    info = world.client.server_info(5)[table]
    unblocked = world.may_insert(table, count)
    if table in world.unsettled or unblocked or not world.may_sample(table, 1):
        return SKIPPED
    writer = world.client.trajectory_writer(1, validate_items=False)
    for number in range(count):
        writer.append(step_of(world.schema, number))
        writer.create_item(table, 1.0, tree.map_structure(lambda h: h[-1:], writer.history))
    parts = [attempt(lambda n=n: writer.flush(n, timeout_ms=200)) for n in (count, 0)]
    samples = world.client.sample(table, info.current_size + count, emit_timesteps=False)
    # How many items were in the table depends on the writer's thread.
    sampled = [
        [world.key(table, sample.info.key), sample.info.priority, encode_nest(sample.data)]
        for sample in samples
    ]
    world.raced.add(table)
    parts += [attempt(lambda: writer.flush(timeout_ms=8000)), attempt(writer.close)]
    return {"parts": parts, "sampled": sampled}


READING: dict[str, Callable[[World, dict[str, Any]], Any]] = {
    "sample": _sample,
    "backpressure": _backpressure,
}
