# SPDX-License-Identifier: Apache-2.0
"""The nest of all columns of a writer: the union of the structures of all steps so far.

A step may lack fields of earlier steps and may have new fields. Fields are matched by path, so a
tuple matches a list, and a dict matches a named tuple. Each container keeps the type that it had
when it first appeared.
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any

from reverb._nests.flat import fields, flatten_with_path
from reverb._nests.structured_value import is_named_tuple
from reverb.errors import InvalidArgumentError

Path = tuple[Any, ...]


class Column:
    """A leaf of the union: one column, with its path."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path


def merge(known: object, data: object, path: Path = ()) -> object:
    """Returns the union of a nest of `Column`s with the structure of `data`.

    It is `known` itself if `data` has no new field. `known` is an empty tuple at first, and `path`
    that of both in the whole nest.

    Raises:
      InvalidArgumentError: If a field is a leaf in one and a nest in the other, or if a container
        cannot have a new field.
    """
    values = _children(data)
    if isinstance(known, Column):
        if values is None or not flatten_with_path(data):
            return known
        raise InvalidArgumentError(
            f"column {path} holds single values since the first step, got a nest: {data!r}"
        )
    columns = _children(known)
    if not columns:
        # An empty container has no column yet, so anything may replace it.
        return known if values is not None and not values else _adopt(data, path)
    if values is None:
        raise InvalidArgumentError(
            f"{path} is a nest of columns since the first step; leave the whole field out instead "
            f"of giving {data!r}"
        )
    merged = dict(columns)
    for key, value in values.items():
        child = (*path, key)
        merged[key] = merge(columns[key], value, child) if key in columns else _adopt(value, child)
    if len(merged) == len(columns) and all(merged[key] is columns[key] for key in columns):
        return known
    return _rebuild(known, merged, path)


def map_columns(function: Callable[[Column], Any], nest: object) -> object:
    """Returns the nest with `function(column)` in place of each column."""
    if isinstance(nest, Column):
        return function(nest)
    children = _children(nest)
    assert children is not None
    return _rebuild(nest, {key: map_columns(function, child) for key, child in children.items()})


def _adopt(data: object, path: Path) -> object:
    values = _children(data)
    if values is None:
        return Column(path)
    children = {key: _adopt(value, (*path, key)) for key, value in values.items()}
    return _rebuild(data, children, path)


def _children(nest: object) -> dict[Any, Any] | None:
    """Returns the fields of a container; `None` for a leaf and for a column."""
    return None if isinstance(nest, Column) else fields(nest)


def _rebuild(like: Any, children: dict[Any, Any], path: Path = ()) -> object:
    """Makes a container of the type of `like` with the given fields."""
    cls = type(like)
    try:
        if isinstance(like, collections.defaultdict):
            return cls(like.default_factory, children)
        if isinstance(like, Mapping):
            return cls(children)  # pyright: ignore[reportCallIssue] - abstract, but never bare.
        if is_named_tuple(like):
            return cls(**children)
        if hasattr(cls, "__attrs_attrs__"):
            return cls(**{name.lstrip("_"): child for name, child in children.items()})
        if set(children) != set(range(len(children))):
            raise TypeError("its fields are numbered")
        return cls(children[i] for i in range(len(children)))  # pyright: ignore[reportCallIssue]
    except TypeError as error:
        raise InvalidArgumentError(
            f"the {cls.__name__} at {path} cannot hold the fields {list(children)}: {error}"
        ) from error
