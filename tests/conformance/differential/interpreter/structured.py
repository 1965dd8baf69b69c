# SPDX-License-Identifier: Apache-2.0
"""Configs of structured writers, from JSON."""

from __future__ import annotations

import operator
from typing import Any

import tree
from values import build_nest

import reverb

_OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}


def build_config(schema: Any, config: dict[str, Any]) -> Any:
    """Returns the config of a pattern, a table, conditions and a priority."""
    structure = build_nest(schema, lambda *_: None)
    reference = reverb.structured.create_reference_step(structure)
    nodes = config["pattern"]
    if isinstance(nodes[0], str):  # One index for all columns, in the nest of the steps.
        pattern = tree.map_structure(lambda node: node[_key(nodes)], reference)
    else:
        flat = tree.flatten(reference)
        pattern = {f"c{i}": flat[leaf][_key(key)] for i, (leaf, key) in enumerate(nodes)}
    priority = config["priority"]
    if isinstance(priority, list):
        weight, leaf = priority
        priority = reverb.structured.td_error(
            weight, structure, lambda step: tree.flatten(step)[leaf]
        )
    elif priority is not None:
        priority = reverb.structured.constant_priority_fn(priority)
    return reverb.structured.create_config(
        pattern=pattern,
        table=config["table"],
        conditions=[_condition(structure, words) for words in config["conditions"]],
        priority=priority,
    )


def _key(words: list[Any]) -> Any:
    return slice(*words[1:]) if words[0] == "slice" else words[1]


def _condition(structure: Any, words: list[Any]) -> Any:
    """`["step_index", null, ">=", 2]`, `["data 0", 3, "==", 1]`, `["is_end_episode"]`."""
    name, *rest = words
    if name.startswith("data"):
        left = tree.flatten(reverb.structured.Condition.data(structure))[int(name.split()[1])]
    else:
        left = getattr(reverb.structured.Condition, name)()
    if not rest:
        return left
    modulus, sign, right = rest
    if modulus is not None:
        left = left % modulus
    return _OPERATORS[sign](left, right)
