# SPDX-License-Identifier: Apache-2.0
"""The data spec of a replay buffer, and checks of frames and items against it."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tree

from reverb import errors
from reverb.adapters.tf_agents.frame_layout import LAST

__all__ = ["DataSpec"]


class DataSpec:
    """The spec of one frame, usually a `Trajectory` of TF-Agents, without batch and time.

    Attributes:
      nest: The spec, without the wrappers that a `tf.Module` puts around its containers.
    """

    nest: Any

    def __init__(self, nest: Any) -> None:
        self.nest = _unwrapped(nest)
        with_paths = tree.flatten_with_path(self.nest)
        self._fields = ["/".join(map(str, path)) or "the frame" for path, _ in with_paths]
        self._leaves = [leaf for _, leaf in with_paths]

    @property
    def has_episodes(self) -> bool:
        """Whether frames have a `step_type`, which marks the ends of episodes."""
        return hasattr(self.nest, "step_type")

    @property
    def dtypes(self) -> Any:
        """Nest of the dtypes."""
        return tree.map_structure(lambda spec: tf.as_dtype(spec.dtype), self.nest)

    def shapes(self, *leading: int | None) -> Any:
        """Nest of `tf.TensorShape`s with leading dimensions."""
        front = tf.TensorShape(leading)
        return tree.map_structure(lambda spec: front.concatenate(spec.shape), self.nest)

    def nested(self, columns: Sequence[Any]) -> Any:
        """Nests a flat list like the spec."""
        return tree.unflatten_as(self.nest, columns)

    def checked_item(self, columns: Sequence[Any], table: str, length: int | None) -> list[Any]:
        """Checks the columns of an item, arrays `[T, ...]`, against the spec, and returns them.

        `None` as a length means any.

        Raises:
          SignatureMismatchError: If they do not match; the text names the field.
        """
        if len(columns) != len(self._leaves):
            raise errors.SignatureMismatchError(
                f"an item of table {table} has {len(columns)} columns, data_spec has "
                f"{len(self._leaves)}: {', '.join(self._fields)}"
            )
        for field, spec, column in zip(self._fields, self._leaves, columns, strict=True):
            _check_leaf(f"field {field} of an item of table {table}", spec, column, length)
        return list(columns)

    def checked_frames(self, frames: Any) -> tuple[Any, int | None]:
        """Checks frames, tensors or arrays `[B, ...]`, and returns them with their number.

        The number is `None` if it is unknown in a graph.

        Raises:
          SignatureMismatchError: If they do not match; the text names the field.
        """
        found = {"/".join(map(str, path)): leaf for path, leaf in tree.flatten_with_path(frames)}
        fields = found.keys() if self._fields != ["the frame"] else {"the frame"}
        missing = [field for field in self._fields if field not in fields]
        unknown = [field for field in fields if field not in self._fields]
        if missing or unknown or len(found) != len(self._leaves):
            raise errors.SignatureMismatchError(
                "items must have the fields of data_spec"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; unknown: {', '.join(unknown)}" if unknown else "")
            )
        columns, batch_size = [], None
        for field, spec, leaf in zip(self._fields, self._leaves, found.values(), strict=True):
            column = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
            _check_leaf(f"field {field} of items", spec, column, batch_size, "B")
            batch_size = column.shape[0] if batch_size is None else batch_size
            columns.append(column)
        return self.nested(columns), batch_size

    def is_last(self, frames: Any) -> Any:
        """Whether each of the checked frames ends its episode: bools `[B]`, or False for all."""
        if not self.has_episodes:
            return False
        # `==` compares arrays of NumPy and tensors elementwise.
        step_type = frames.step_type
        return tf.equal(step_type, LAST) if tf.is_tensor(step_type) else step_type == LAST

    def mismatch(self, signature: Any, length: int | None) -> str | None:
        """Compares a table's signature with sequences of such frames.

        A table without a signature matches everything; `None` as a length means any.

        Returns:
          A text that names the field that differs; `None` if no difference was found.
        """
        if signature is None:
            return None
        specs = tree.flatten(signature)
        if len(specs) != len(self._leaves):
            return f"data_spec has {len(self._leaves)} fields, the signature {len(specs)}"
        for field, leaf, spec in zip(self._fields, self._leaves, specs, strict=True):
            expected = tf.TensorShape([length]).concatenate(leaf.shape)
            shape, dtype = tf.TensorShape(spec.shape), tf.as_dtype(spec.dtype)
            if tf.as_dtype(leaf.dtype) != dtype or not expected.is_compatible_with(shape):
                return (
                    f"field {field} is {_text(leaf.dtype, expected)} by data_spec and "
                    f"sequence_length, {_text(dtype, shape)} by the signature"
                )
        return None


def _check_leaf(what: str, spec: Any, value: Any, size: int | None, letter: str = "T") -> None:
    expected = tf.TensorShape([size]).concatenate(spec.shape)
    shape, dtype = tf.TensorShape(value.shape), tf.as_dtype(value.dtype)
    fits = tf.as_dtype(spec.dtype) == dtype and expected.is_compatible_with(shape)
    if not fits or shape.rank == 0:
        raise errors.SignatureMismatchError(
            f"{what} must be {_text(spec.dtype, expected, letter)}, got {_text(dtype, shape)}"
        )


def _text(dtype: Any, shape: Any, letter: str | None = None) -> str:
    if shape.rank is None:
        return f"{tf.as_dtype(dtype).name} of unknown shape"
    sizes = ["?" if size is None else str(size) for size in shape.as_list()]
    if letter is not None and sizes and sizes[0] == "?":
        sizes[0] = letter
    return f"{tf.as_dtype(dtype).name} [{', '.join(sizes)}]"


def _unwrapped(nest: Any) -> Any:
    nest = getattr(nest, "__wrapped__", nest)
    if isinstance(nest, Mapping):
        kind = collections.OrderedDict if isinstance(nest, collections.OrderedDict) else dict
        return kind((key, _unwrapped(value)) for key, value in nest.items())
    if isinstance(nest, tuple):
        values = [_unwrapped(value) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else tuple(values)
    return [_unwrapped(value) for value in nest] if isinstance(nest, list) else nest
