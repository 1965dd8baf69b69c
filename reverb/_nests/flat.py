# SPDX-License-Identifier: Apache-2.0
"""Flattens the data of writers: leaves, and labels of their columns.

The order is that of `tree.flatten`. Unlike there, an object with values in memory, such as an
`array.array`, a `memoryview` or an array of `ctypes`, is one leaf, whatever kind of sequence it is.
"""

import array
import ctypes
from collections.abc import Mapping
from typing import Any

import tree

from reverb._nests.structured_value import is_named_tuple

__all__ = ["by_label", "fields", "flatten_with_labels", "flatten_with_path"]

_BUFFERS = (array.array, memoryview, ctypes.Array)

Path = tuple[Any, ...]


def fields(nest: Any) -> dict[Any, Any] | None:
    """Returns the fields of a container by their key in `tree`'s paths; `None` for a leaf."""
    if isinstance(nest, _BUFFERS) or not tree.is_nested(nest):
        return None
    if isinstance(nest, Mapping):
        return dict(nest.items())
    if is_named_tuple(nest):
        return dict(zip(nest._fields, nest, strict=True))
    attributes = getattr(type(nest), "__attrs_attrs__", None)
    if attributes is not None:
        return {attribute.name: getattr(nest, attribute.name) for attribute in attributes}
    return dict(enumerate(nest))


def flatten_with_path(data: object) -> list[tuple[Path, Any]]:
    """Returns the path and the value of each leaf, in flat order."""
    found: list[tuple[Path, Any]] = []
    _collect(data, (), found)
    return found


def flatten_with_labels(data: object) -> tuple[list[str], list[Any]]:
    """Returns the label of each leaf, which is its path joined with `/`, and the leaves."""
    pairs = flatten_with_path(data)
    labels = ["/".join(str(key) for key in path) for path, _ in pairs]
    return labels, [leaf for _, leaf in pairs]


def by_label(data: object, values: list[Any]) -> object:
    """Returns values of the leaves for an error text: a dict by label, or a list without names."""
    labels, _ = flatten_with_labels(data)
    if all(label.isdigit() or not label for label in labels):
        return values
    return dict(zip(labels, values, strict=True))


def _collect(data: object, path: Path, found: list[tuple[Path, Any]]) -> None:
    children = fields(data)
    if children is None:
        found.append((path, data))
        return
    for key in sorted(children) if isinstance(data, Mapping) else children:
        _collect(children[key], (*path, key), found)
