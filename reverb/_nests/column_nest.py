# SPDX-License-Identifier: Apache-2.0
"""The nest of all columns that a writer has seen: the union of what was appended so far.

A step may leave out fields that others had, and may bring new ones. Fields are matched by their
path, so a tuple may stand in for a list and a dict for a named tuple. The containers keep the types
of the data that brought them.
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import tree

from reverb._nests.structured_value import is_named_tuple
from reverb.errors import InvalidArgumentError

Path = tuple[Any, ...]


class Column:
    """A leaf of the union: the place of one column."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path


def merge(known: Any, data: Any, path: Path = ()) -> Any:
    """The union of a nest of `Column`s with the structure of `data`.

    Args:
      known: A nest of columns; an empty tuple if there are none yet.
      data: Nest of values.
      path: Where in the whole both of them are.

    Returns:
      `known` itself if `data` brings nothing new.

    Raises:
      InvalidArgumentError: If a leaf meets a nest, or if a container cannot take a new field.
    """
    values = _children(data)
    if isinstance(known, Column):
        if values is None or not tree.flatten(data):
            return known
        raise InvalidArgumentError(
            f"column {path} holds single values since the first step, got a nest: {data!r}"
        )
    columns = _children(known)
    if not columns:
        # An empty container has no column yet, so that anything may take its place.
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


def map_columns(function: Callable[[Column], Any], nest: Any) -> Any:
    """The same nest with `function(column)` in place of every column."""
    if isinstance(nest, Column):
        return function(nest)
    children = _children(nest)
    assert children is not None
    return _rebuild(nest, {key: map_columns(function, child) for key, child in children.items()})


def _adopt(data: Any, path: Path) -> Any:
    values = _children(data)
    if values is None:
        return Column(path)
    children = {key: _adopt(value, (*path, key)) for key, value in values.items()}
    return _rebuild(data, children, path)


def _children(nest: Any) -> dict[Any, Any] | None:
    """The fields of a container, by the key that `tree` gives them in a path; None for a leaf."""
    if isinstance(nest, Column) or not tree.is_nested(nest):
        return None
    if isinstance(nest, Mapping):
        return dict(nest.items())
    if is_named_tuple(nest):
        return dict(zip(nest._fields, nest, strict=True))
    attributes = getattr(type(nest), "__attrs_attrs__", None)
    if attributes is not None:
        return {attribute.name: getattr(nest, attribute.name) for attribute in attributes}
    return dict(enumerate(nest))


def _rebuild(like: Any, children: dict[Any, Any], path: Path = ()) -> Any:
    """A container of the type of `like` with the given fields."""
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
