# SPDX-License-Identifier: Apache-2.0
"""Patterns of a structured writer: which steps of which columns make an item.

A pattern is written by indexing a reference step, where `[-1]` is the newest value of a column. The
writer gets it as a message. Public names: `reverb.structured`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tree

from reverb import specs
from reverb._nests import structured_value
from reverb.core import protos
from reverb.errors import InvalidArgumentError

# The message `StructuredWriterConfig`: one pattern, its table, its conditions, its priority.
Config = protos.StructuredWriterConfig
# The message `Condition`.
ConditionProto = protos.Condition
PatternNode = protos.PatternNode
Priority = protos.Priority

# Nest of `PatternNode` messages.
Pattern = Any
# Nest like a step, whose leaves can be indexed.
ReferenceStep = Any
PatternTransform = Callable[[ReferenceStep], Pattern]


class _ReferenceColumn:
    """Leaf of a reference step. Indexing it makes a node of a pattern."""

    def __init__(self, flat_source_index: int) -> None:
        self._flat_source_index = flat_source_index

    def __getitem__(self, key: int | slice) -> Any:
        node = PatternNode(flat_source_index=self._flat_source_index)
        if isinstance(key, int):
            node.stop = key
        elif isinstance(key, slice):
            for field in ("start", "stop", "step"):
                value = getattr(key, field)
                if value is not None:
                    setattr(node, field, value)
        else:
            raise InvalidArgumentError(
                f"a column of a reference step takes an int or a slice, got {key!r}"
            )
        return node

    # Otherwise iteration would call `[0]`, `[1]`, ... without end.
    __iter__ = None


def create_reference_step(step_structure: object) -> ReferenceStep:
    """Makes a step whose leaves are indexed to select the values of a pattern.

    `x[-1]` is the newest value of column `x`, without a time axis; `x[-3:]` are the last three,
    `[3, ...]`; `x[-5:-1:2]` is every second one of four. Indices count from the end.

    Args:
      step_structure: Nest like the steps that will be appended; its leaves are ignored.

    Example:
      >>> step = create_reference_step({"observation": None, "action": None})
      >>> pattern = {"history": step["observation"][-4:], "action": step["action"][-1]}
    """
    count = len(tree.flatten(step_structure))
    return tree.unflatten_as(step_structure, [_ReferenceColumn(i) for i in range(count)])


def pattern_from_transform(step_structure: object, transform: PatternTransform) -> Pattern:
    """Returns the pattern that `transform` makes of a reference step."""
    return transform(create_reference_step(step_structure))


def create_config(
    pattern: Pattern,
    table: str,
    conditions: Sequence[Any] = (),
    priority: object = None,
    *,
    removal_priority: object = None,
) -> Any:
    """Combines a pattern with its table, conditions and priority.

    Args:
      pattern: Nest of indexed columns of a reference step.
      table: Name of the table to insert into.
      conditions: An item is made only if all of them hold; see `Condition`.
      priority: See `constant_priority_fn` and `td_error`; `None`: 1.0.
      removal_priority: Priority for the table's remover, as in `TrajectoryWriter.create_item`;
        made like `priority`. `None`: the priority.

    Returns:
      A `Config`. It is validated when a writer is made of it.

    Raises:
      TypeError: If a leaf of the pattern is not an indexed column, or if a condition is not
        compared with a number.
    """
    return Config(
        flat=tree.flatten(pattern),
        pattern_structure=structured_value.encode(tree.map_structure(lambda _: None, pattern)),
        table=table,
        priority=constant_priority_fn(1.0) if priority is None else priority,
        conditions=conditions,
        removal_priority=removal_priority,
    )


def unpack_pattern(config: Any) -> Pattern:
    """Returns the pattern of a config; a flat list if the config has no structure."""
    nodes = list(config.flat)
    if not config.HasField("pattern_structure"):
        return nodes
    return tree.unflatten_as(structured_value.decode(config.pattern_structure), nodes)


def infer_signature(configs: Sequence[Any], step_spec: object) -> Any:
    """Returns the table signature that matches the items of all configs.

    Args:
      configs: Configs with the same table and the same pattern structure.
      step_spec: Nest of specs of a step; anything with a shape and a dtype.

    Returns:
      Nest of specs, like the pattern. A dimension in which configs differ is `None`.

    Raises:
      InvalidArgumentError: If there is no config, or if configs differ in table, structure, dtype
        or any dimension but the first.
    """
    if not configs:
        raise InvalidArgumentError("At least one config must be provided.")
    if any(config.pattern_structure != configs[0].pattern_structure for config in configs):
        raise InvalidArgumentError("All configs must have exactly the same pattern_structure.")
    tables = {config.table for config in configs}
    if len(tables) > 1:
        raise InvalidArgumentError(
            "All configs must target the same table but provided configs included "
            f"{', '.join(sorted(tables))}."
        )
    columns = [specs.as_spec(leaf) for leaf in tree.flatten(step_spec)]

    def infer(path: tuple[Any, ...], *nodes: Any) -> specs.TensorSpec:
        sliced = [_sliced(columns[node.flat_source_index], node) for node in nodes]
        dtypes = [spec.dtype for spec in sliced]
        if any(dtype != dtypes[0] for dtype in dtypes):
            raise InvalidArgumentError(
                f"Configs produce trajectories with multiple dtypes at {path}. Got "
                f"{[dtype.name for dtype in dtypes]}"
            )
        shape = _joined_shape(path, [spec.shape for spec in sliced])
        name = "/".join(str(key) for key in path)
        return specs.to_tensorflow_if_imported(specs.TensorSpec(shape, dtypes[0], name))

    return tree.map_structure_with_path(infer, *(unpack_pattern(config) for config in configs))


def constant_priority_fn(value: float) -> Any:
    """Makes a priority that is the same for every item of a config."""
    return Priority(constant_fn={"value": value})


def td_error(
    max_priority_weight: float,
    step_structure: object,
    get_field_from_step_fn: Callable[[Any], Any],
) -> Any:
    """Makes a priority from the temporal-difference errors in a column of the steps.

    With the errors `e` of the item's steps, it is `w * max(|e|) + (1 - w) * mean(|e|)`, as in
    "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2), section 2.3.

    Args:
      max_priority_weight: The weight `w`, 0.9 in the paper.
      step_structure: Nest like the steps that will be appended.
      get_field_from_step_fn: Takes a step and returns the column of the errors, scalars of dtype
        float32, float64, int32 or int64. The pattern must include this column.
    """
    count = len(tree.flatten(step_structure))
    index = get_field_from_step_fn(tree.unflatten_as(step_structure, list(range(count))))
    return Priority(
        td_error={"max_priority_weight": max_priority_weight, "flat_source_index": index}
    )


def _sliced(column: specs.TensorSpec, node: Any) -> specs.TensorSpec:
    """Returns the spec of the values that a node selects; a single step has no time axis."""
    if column.shape is None or not node.HasField("start"):
        return column
    step = node.step if node.HasField("step") else 1
    length = math.ceil((node.stop - node.start) / step)
    return specs.TensorSpec((length, *column.shape), column.dtype)


def _joined_shape(path: tuple[Any, ...], shapes: list[specs.Shape | None]) -> specs.Shape | None:
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    first = known[0]
    if all(shape == first for shape in known):
        return first
    if any(len(shape) != len(first) or shape[1:] != first[1:] for shape in known):
        raise InvalidArgumentError(
            f"Configs produce trajectories with incompatible shapes at {path}. Got {known}"
        )
    return (None, *first[1:])
