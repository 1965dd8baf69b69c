# SPDX-License-Identifier: Apache-2.0
"""Steps that sample without a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from values import encode_nest
from world import SKIPPED, World


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


READING: dict[str, Callable[[World, dict[str, Any]], Any]] = {
    "sample": _sample,
}
