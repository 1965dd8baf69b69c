# SPDX-License-Identifier: Apache-2.0
"""Schemas and steps as JSON: a nest is an object of one key, `dict`, `list`, `tuple`, `named` or
`leaf`; a leaf is `{"leaf": [DTYPE, SHAPE]}`."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from arrays import encode


def build_nest(schema: Any, leaf: Any) -> Any:
    """Returns the nest of a schema with `leaf(index, dtype, shape)` in each place."""
    counter = iter(range(1000))

    def build(value: Any) -> Any:
        ((kind, content),) = value.items()
        if kind == "leaf":
            return leaf(next(counter), *content)
        if kind in ("list", "tuple"):
            parts = [build(part) for part in content]
            return parts if kind == "list" else tuple(parts)
        # Leaves are numbered in the order in which they are flattened.
        parts = {key: build(content[key]) for key in sorted(content)}
        if kind == "dict":
            return parts
        return collections.namedtuple("Named", sorted(content))(**parts)

    return build(schema)


def leaves_of(schema: Any) -> list[tuple[str, list[int]]]:
    """Returns dtype and shape of each leaf, in flattened order."""
    return tree.flatten(build_nest(schema, lambda _, dtype, shape: _Leaf(dtype, shape)))


class _Leaf:
    def __init__(self, dtype: str, shape: list[int]) -> None:
        self.dtype, self.shape = dtype, shape

    def __iter__(self) -> Any:
        return iter((self.dtype, self.shape))


def array(number: int, index: int, dtype: str, shape: list[int]) -> np.ndarray:
    """Returns the array that leaf `index` of step `number` has; others differ from it."""
    size = int(np.prod(shape, dtype=np.int64))
    if dtype == "string":
        cells = [f"{number}.{index}.{i}".encode() for i in range(size)]
        return np.array(cells, object).reshape(shape) if shape else np.asarray(cells[0], object)
    values = number + 16 * index + 3 * np.arange(size)
    if dtype == "bool":
        values = values % 2
    elif np.dtype(dtype).kind in "iu":
        values = values % 100
    return np.asarray(values, dtype).reshape(shape)


def step(schema: Any, number: int, wrong: dict[str, Any] | None = None) -> Any:
    """Returns the nest of arrays of step `number`; `wrong` exchanges one leaf's dtype or shape."""

    def leaf(index: int, dtype: str, shape: list[int]) -> np.ndarray:
        if wrong and wrong["leaf"] == index:
            dtype, shape = wrong.get("dtype", dtype), wrong.get("shape", shape)
        return array(number, index, dtype, shape)

    return build_nest(schema, leaf)


def omit(data: Any, leaves: list[int]) -> Any:
    """Returns a step in which some leaves are None."""
    flat = [None if i in leaves else leaf for i, leaf in enumerate(tree.flatten(data))]
    return tree.unflatten_as(data, flat)


def specs(schema: Any, leading: str) -> Any:
    """Returns the nest of `tf.TensorSpec`s; `leading`: `none`, `open`, `rank` or a number."""

    def leaf(_: int, dtype: str, shape: list[int]) -> tf.TensorSpec:
        if leading == "rank":
            return tf.TensorSpec(None, tf.as_dtype(dtype))
        first = {"none": [], "open": [None]}.get(leading)
        first = [int(leading)] if first is None else first
        return tf.TensorSpec(first + shape, tf.as_dtype(dtype))

    return build_nest(schema, leaf)


def describe_specs(nest: Any) -> Any:
    """Returns types, shapes and dtypes of a nest of specs as JSON."""
    if isinstance(nest, tf.TypeSpec | tf.Tensor) or hasattr(nest, "dtype"):
        shape = tf.TensorShape(nest.shape)
        return [tf.as_dtype(nest.dtype).name, None if shape.rank is None else list(shape)]
    if hasattr(nest, "_fields"):
        return {"named": {name: describe_specs(getattr(nest, name)) for name in nest._fields}}
    if isinstance(nest, collections.abc.Mapping):
        return {"dict": {str(key): describe_specs(nest[key]) for key in sorted(nest)}}
    if isinstance(nest, list | tuple):
        return {type(nest).__name__: [describe_specs(part) for part in nest]}
    return repr(nest)


def encode_nest(nest: Any) -> list[Any]:
    """Returns paths and arrays of a nest."""
    return [[[*map(str, path)], encode(leaf)] for path, leaf in tree.flatten_with_path(nest)]
