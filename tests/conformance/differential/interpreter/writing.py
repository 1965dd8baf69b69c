# SPDX-License-Identifier: Apache-2.0
"""Steps that write items; each writer lives within one step and its items are confirmed."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tree
from structured import build_config
from values import encode_nest, omit
from values import step as step_of
from world import SKIPPED, World, attempt

# Long enough for a writer that need not wait for its table.
_FLUSH_MS = 8_000


def _insert(world: World, step: dict[str, Any]) -> Any:
    priorities = {table: priority for table, priority in step["priorities"]}
    if not all(world.may_insert(table, 1) for table in priorities):
        return SKIPPED
    data = step_of(world.schema, step["number"], step.get("wrong"))
    return world.client.insert(data, priorities)


def _parts(step: dict[str, Any], calls: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """Runs the calls of a writer's body; each may fail alone."""
    return {"parts": [attempt(lambda c=c: calls[c[0]](*c[1:])) for c in step["body"]]}


def _may_write(world: World, step: dict[str, Any]) -> bool:
    items = collections.Counter(call[1] for call in step["body"] if call[0] == "create_item")
    return all(world.may_insert(table, count) for table, count in items.items())


def _legacy(world: World, step: dict[str, Any]) -> Any:
    if not _may_write(world, step):
        return SKIPPED
    writer = world.client.writer(**step["options"])

    def append(number: int) -> None:
        writer.append(step_of(world.schema, number))

    def append_sequence(number: int, count: int) -> None:
        steps = [step_of(world.schema, number + i) for i in range(count)]
        writer.append_sequence(tree.map_structure(lambda *cells: np.stack(cells), *steps))

    calls = {
        "append": append,
        "append_sequence": append_sequence,
        "create_item": writer.create_item,
        "flush": writer.flush,
        "close": writer.close,
    }
    if not step["with"]:
        seen = _parts(step, calls)
        seen["parts"].append(attempt(writer.close))
        return seen
    with writer:
        return _parts(step, calls)


def _trajectory(world: World, step: dict[str, Any]) -> Any:
    if not _may_write(world, step):
        return SKIPPED
    writer = world.client.trajectory_writer(**step["options"])
    paths = [path for path, _ in tree.flatten_with_path(step_of(world.schema, 0))]

    def append(number: int, options: dict[str, Any]) -> None:
        data = step_of(world.schema, number, options.get("wrong"))
        data = omit(data, options.get("omit", []))
        writer.append(data, partial_step=options.get("partial_step", False))

    def column(leaf: int, index: list[Any]) -> Any:
        return tree.flatten(writer.history)[leaf][_index(index)]

    def create_item(table: str, priority: float, columns: Any) -> None:
        if isinstance(columns[0], str):  # One index for all columns, in the nest of the steps.
            trajectory = tree.map_structure(lambda h: h[_index(columns)], writer.history)
        else:
            trajectory = {f"c{i}": column(*each) for i, each in enumerate(columns)}
        writer.create_item(table, priority, trajectory)

    def look(leaf: int, index: list[Any]) -> Any:
        seen = column(leaf, index)
        shape = None if seen.shape is None else list(seen.shape)
        cells = encode_nest(seen.numpy())
        return [len(tree.flatten(writer.history)[leaf]), shape, str(seen.dtype), cells]

    calls = {
        "append": append,
        "create_item": create_item,
        "look": look,
        "flush": writer.flush,
        "end_episode": writer.end_episode,
        "episode_steps": lambda: writer.episode_steps,
        "configure": lambda leaf, **options: writer.configure(paths[leaf], **options),
    }
    for leaf, options in step["configure"]:
        writer.configure(paths[leaf], **options)
    with writer if step["with"] else contextlib.nullcontext():
        seen = _parts(step, calls)
    seen["parts"].append(attempt(lambda: writer.flush(timeout_ms=_FLUSH_MS)))
    seen["parts"].append(attempt(writer.close))
    return seen


def _index(words: list[Any]) -> Any:
    kind, *numbers = words
    if kind == "slice":
        return slice(*numbers)
    return numbers[0]


def _structured(world: World, step: dict[str, Any]) -> Any:
    appends = sum(call[0] in ("append", "end_episode") for call in step["body"])
    tables = collections.Counter(config["table"] for config in step["configs"])
    if not all(world.may_insert(table, count * appends) for table, count in tables.items()):
        return SKIPPED
    writer = world.client.structured_writer(
        [build_config(world.schema, config) for config in step["configs"]]
    )

    def append(number: int, options: dict[str, Any]) -> bool:
        data = omit(step_of(world.schema, number, options.get("wrong")), options.get("omit", []))
        writer.append(data, partial_step=options.get("partial_step", False))
        return writer.step_is_open

    calls = {"append": append, "flush": writer.flush, "end_episode": writer.end_episode}
    seen = _parts(step, calls)
    seen["parts"].append(attempt(lambda: writer.flush(timeout_ms=_FLUSH_MS)))
    return seen


WRITING: dict[str, Callable[[World, dict[str, Any]], Any]] = {
    "insert": _insert,
    "write": _legacy,
    "write_trajectory": _trajectory,
    "write_structured": _structured,
}
