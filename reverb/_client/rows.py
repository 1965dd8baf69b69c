# SPDX-License-Identifier: Apache-2.0
"""Rows that a client inserts or updates: checks arguments and converts them for the core."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reverb._checks.arguments import (
    as_keys,
    as_rows,
    check_mapping,
    check_table,
    check_timeout_ms,
)
from reverb._client.own_keys import InsertOptions, options_of
from reverb._nests.flat import by_label, flatten_with_labels
from reverb.core import native
from reverb.errors import InvalidArgumentError
from reverb.shown_text import type_name

__all__ = ["keys_of", "sequence_of", "step_of", "steps_of", "updates_of", "without_tensor"]


def step_of(
    flattener: native.NestFlattener,
    data: object,
    priorities: Mapping[str, float],
    removal_priorities: Mapping[str, float] | None,
) -> tuple[list[Any], native.ColumnNames, dict[str, float], dict[str, float] | None]:
    """Returns the arguments of the native `insert`."""
    _check_tables(priorities, removal_priorities)
    removal = None if removal_priorities is None else dict(removal_priorities)
    leaves, names = flattener.flatten(data)
    return leaves, names, dict(priorities), removal


def sequence_of(
    flattener: native.NestFlattener,
    data: object,
    priorities: Mapping[str, float],
    removal_priorities: Mapping[str, float] | None,
    key: object,
    replace: bool,
    timeout_ms: int | None,
) -> tuple[
    list[Any],
    native.ColumnNames,
    dict[str, float],
    dict[str, float] | None,
    bool,
    InsertOptions | None,
]:
    """Returns the arguments of the native `insert` for a sequence."""
    options = options_of(key, replace, check_timeout_ms(timeout_ms), None)
    leaves, names, items, removal = step_of(flattener, data, priorities, removal_priorities)
    leaves = _arrays(data, leaves)
    return leaves, names, items, removal, True, options


def steps_of(
    flattener: native.NestFlattener,
    data: object,
    priorities: Mapping[str, Any],
    removal_priorities: Mapping[str, Any] | None,
    keys: object,
    replace: bool,
    timeout_ms: int | None,
) -> tuple[
    list[Any], native.ColumnNames, dict[str, Any], dict[str, Any] | None, InsertOptions | None
]:
    """Returns the arguments of the native `insert_batch`."""
    max_wait_ms = check_timeout_ms(timeout_ms)
    _check_tables(priorities, removal_priorities)
    leaves, names = flattener.flatten(data)
    leaves = _arrays(data, leaves)
    sizes = {len(leaf) if leaf.ndim else None for leaf in leaves}
    batch_size = sizes.pop()
    if sizes or batch_size is None:
        raise InvalidArgumentError(
            "leaves of a batch must all have shape [B, ...], got "
            f"{by_label(data, [list(leaf.shape) for leaf in leaves])}"
        )

    def rows(argument: str, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            table: as_rows(argument, value, np.float64, batch_size)
            for table, value in values.items()
        }

    removal = None
    if removal_priorities is not None:
        removal = rows("removal_priorities", removal_priorities)
    options = options_of(without_tensor("keys", keys), replace, max_wait_ms, batch_size)
    return leaves, names, rows("priorities", priorities), removal, options


def _arrays(data: object, leaves: list[Any]) -> list[Any]:
    """Returns the leaves of a nest as arrays.

    Raises:
      InvalidArgumentError: If there are none.
      TypeError: If one is an object that no array can hold; the text names its path.
    """
    if not leaves:
        raise InvalidArgumentError("data must have at least one leaf, got none")
    arrays = [native.as_array(leaf, f"column {at}") for at, leaf in enumerate(leaves)]
    for at, (leaf, array) in enumerate(zip(leaves, arrays, strict=True)):
        if array.dtype == object and array.ndim == 0 and not isinstance(leaf, np.ndarray):
            labels, _ = flatten_with_labels(data)
            raise TypeError(
                f"leaf {labels[at]!r} of data must be an array of numbers, booleans, str or bytes, "
                f"got {type_name(leaf)}"
            )
    return arrays


def keys_of(priorities: Mapping[str, Any], keys: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the keys for each table, selected from the result of the native `insert_batch`."""
    if not len(keys):
        return {}
    return dict(zip(priorities, keys.reshape(-1, len(priorities)).T, strict=True))


def updates_of(table: str, keys: object, priorities: object) -> tuple[str, np.ndarray, np.ndarray]:
    """Returns the arguments of the native `update_priorities`."""
    check_table(table)
    keys = as_keys("keys", without_tensor("keys", keys))
    if priorities is None:
        raise TypeError("priorities must be numbers, got None")
    return table, keys, as_rows("priorities", priorities, np.float64, len(keys))


def _check_tables(priorities: Mapping[str, Any], removal: Mapping[str, Any] | None) -> None:
    if not priorities:
        raise InvalidArgumentError("priorities must name at least one table, got none")
    check_mapping("priorities", priorities, "tables to priorities")
    if removal is None:
        return
    check_mapping("removal_priorities", removal, "tables to priorities")
    for table in removal:
        if table not in priorities:
            raise InvalidArgumentError(
                f"removal_priorities names table {table!r}, which is not one of priorities: "
                f"{sorted(priorities)}"
            )


def without_tensor(name: str, value: object) -> object:
    """Returns an array for a tensor of another library, other values as they are."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    return native.as_array(value, name)
