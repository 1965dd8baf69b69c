# SPDX-License-Identifier: Apache-2.0
"""Nests of arrays with a row for each environment: values of Dict and Tuple spaces."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reverb import errors

__all__ = ["check_space", "map_nest", "map_space", "with_rows", "without"]


def map_nest(function: Callable[..., Any], nest: object, *others: Any) -> Any:
    """Returns the nest with `function(leaf)` for each leaf; `others` have the same structure.

    The function gets their leaves at the same place, too.
    """
    if isinstance(nest, Mapping):
        return {
            key: map_nest(function, value, *(other[key] for other in others))
            for key, value in nest.items()
        }
    if isinstance(nest, tuple):
        return tuple(map_nest(function, *values) for values in zip(nest, *others, strict=True))
    return function(nest, *others)


def without(nest: object, is_left_out: Callable[[str], bool], path: str = "") -> Any:
    """Returns the nest without the parts whose path, such as `a/0`, is left out.

    `path` is that of the nest. A tuple with a gap becomes a dict, so that the others keep theirs.
    """
    if isinstance(nest, Mapping):
        children = dict(nest)
    elif isinstance(nest, tuple):
        children = {str(index): value for index, value in enumerate(nest)}
    else:
        return nest
    paths = {key: f"{path}/{key}" if path else key for key in children}
    kept = {
        key: without(value, is_left_out, paths[key])
        for key, value in children.items()
        if not is_left_out(paths[key])
    }
    if isinstance(nest, tuple) and list(kept) == [str(index) for index in range(len(kept))]:
        return tuple(kept.values())
    return kept


def map_space(function: Callable[[Any], Any], space: object) -> object:
    """Returns a nest with `function(space)` for each space below Dict and Tuple."""
    children = getattr(space, "spaces", None)
    if isinstance(children, Mapping):
        return {key: map_space(function, child) for key, child in children.items()}
    if isinstance(children, tuple):
        return tuple(map_space(function, child) for child in children)
    return function(space)


def check_space(argument: str, space: object) -> None:
    """Checks that the values of a space are arrays of one shape and type.

    Raises:
      InvalidArgumentError: If they are not, as with Text, Sequence, Graph and OneOf.
    """

    def check(leaf: object) -> None:
        dtype = getattr(leaf, "dtype", None)
        has_type = dtype is not None and np.dtype(dtype).kind in "biuf"
        if getattr(leaf, "shape", None) is None or not has_type:
            raise errors.InvalidArgumentError(
                f"{argument} has a part {leaf} whose values are no arrays of one shape; a recorder "
                "supports Box, Discrete, MultiBinary, MultiDiscrete, Dict and Tuple: transform "
                "others with a wrapper below the recorder"
            )

    map_space(check, space)


def with_rows(nest: object, rows: object, indices: np.ndarray) -> object:
    """Returns a copy of a nest of arrays `[B, ...]` with some rows replaced by those of another.

    That is the same nest, or an array of `B` objects, each a nest of arrays `[...]`.
    """
    if isinstance(rows, np.ndarray) and rows.dtype == object:
        chosen = [rows[index] for index in indices]
        return _with_rows(nest, chosen, indices)
    return _with_rows(nest, map_nest(lambda leaf: np.asarray(leaf)[indices], rows), indices)


def _with_rows(nest: Any, rows: Any, indices: np.ndarray) -> object:
    """`rows` is a list with a nest for each index, or a nest of arrays with a row for each."""
    if isinstance(nest, Mapping | tuple):
        keys = list(nest) if isinstance(nest, Mapping) else range(len(nest))

        def child(key: Any) -> object:
            return [row[key] for row in rows] if isinstance(rows, list) else rows[key]

        parts = [_with_rows(nest[key], child(key), indices) for key in keys]
        return dict(zip(keys, parts, strict=True)) if isinstance(nest, Mapping) else tuple(parts)
    others = np.stack(rows) if isinstance(rows, list) else rows
    # If the dtypes differ, the common one holds all values.
    changed = np.array(nest, np.result_type(nest, others))
    changed[indices] = others
    return changed
