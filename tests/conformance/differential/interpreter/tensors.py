# SPDX-License-Identifier: Apache-2.0
"""Steps that use a `TFClient`: eagerly, in a `tf.function`, in a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tree
from values import leaves_of
from values import step as step_of
from world import SKIPPED, World

import reverb
from reading import encode_replay


def _insert(world: World, step: dict[str, Any]) -> Any:
    tables = step["tables"]
    if not all(world.may_insert(table, tables.count(table)) for table in tables):
        return SKIPPED

    def insert() -> Any:
        cells = tree.flatten(step_of(world.schema, step["number"]))
        data = [tf.constant(cell, dtype) for cell, dtype in zip(cells, _dtypes(world), strict=True)]
        priorities = tf.constant(step["priorities"], tf.float64)
        client = reverb.TFClient(world.address)
        return client.insert(data, tf.constant(tables), priorities)

    return _run(step["mode"], insert, result=False)


def _sample(world: World, step: dict[str, Any]) -> Any:
    if not world.may_sample(step["table"], 1):
        return SKIPPED
    dtypes = _dtypes(world)
    if step["wrong"]:
        dtypes = [*dtypes[:-1], tf.uint16]

    def sample() -> Any:
        return reverb.TFClient(world.address).sample(step["table"], dtypes)

    try:
        return encode_replay(world, step["table"], _run(step["mode"], sample))
    except Exception:
        world.unsettled.add(step["table"])
        raise


def _update(world: World, step: dict[str, Any]) -> Any:
    if step["table"] in world.unsettled:
        return SKIPPED
    keys = world.keys_of(step["table"], step["updates"])

    def update() -> Any:
        client = reverb.TFClient(world.address)
        priorities = tf.constant(step["priorities"], tf.float64)
        return client.update_priorities(step["table"], tf.constant(keys, tf.uint64), priorities)

    return _run(step["mode"], update, result=False)


def _dtypes(world: World) -> list[Any]:
    return [tf.as_dtype(dtype) for dtype, _ in leaves_of(world.schema)]


def _run(mode: str, build: Callable[[], Any], *, result: bool = True) -> Any:
    """Runs an op and returns its result as arrays, or None if it has none."""
    if mode == "session":
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            seen = session.run(build())
            return seen if result else None
    seen = tf.function(build)() if mode == "function" else build()
    return tree.map_structure(lambda leaf: leaf.numpy(), seen) if result else None


TENSORS: dict[str, Callable[[World, dict[str, Any]], Any]] = {
    "tf_insert": _insert,
    "tf_sample": _sample,
    "tf_update": _update,
}
