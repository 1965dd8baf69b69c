# SPDX-License-Identifier: Apache-2.0
"""Steps that change or describe tables: priorities, deletes, resets, infos, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mistakes import MISTAKES
from specs import INFO_FIELDS, INFO_MESSAGES
from values import describe_specs
from world import SKIPPED, World


def _info(world: World, step: dict[str, Any]) -> Any:
    infos = world.client.server_info(step.get("timeout"))
    for table in world.raced & infos.keys():
        infos[table].num_deleted_episodes = None
    return {
        name: {
            **{field: getattr(info, field) for field in INFO_FIELDS},
            **{message: str(getattr(info, message)) for message in INFO_MESSAGES},
            "signature": info.signature and describe_specs(info.signature),
        }
        for name, info in infos.items()
        if name not in world.unsettled
    }


def _mutate(world: World, step: dict[str, Any]) -> Any:
    if step["table"] in world.unsettled:
        return SKIPPED
    keys = world.keys_of(step["table"], step["updates"])
    updates = None if keys is None else dict(zip(keys, step["priorities"], strict=False))
    deletes = world.keys_of(step["table"], step["deletes"])
    return world.client.mutate_priorities(step["table"], updates=updates, deletes=deletes)


def _reset(world: World, step: dict[str, Any]) -> Any:
    world.client.reset(step["table"])
    world.unsettled.discard(step["table"])


def _can(world: World, step: dict[str, Any]) -> Any:
    if step["table"] in world.unsettled:
        return SKIPPED
    index = list(world.tables).index(step["table"])
    return world.servers.can(world.server, index, step["what"], step["count"])


def _checkpoint(world: World, step: dict[str, Any]) -> Any:
    world.client.checkpoint()


def _restart(world: World, step: dict[str, Any]) -> Any:
    world.restart()


def _mistake(world: World, step: dict[str, Any]) -> Any:
    MISTAKES[step["what"]](world.client)


CONTROL: dict[str, Callable[[World, dict[str, Any]], Any]] = {
    "info": _info,
    "mutate": _mutate,
    "reset": _reset,
    "can": _can,
    "checkpoint": _checkpoint,
    "restart": _restart,
    "mistake": _mistake,
}
