# SPDX-License-Identifier: Apache-2.0
"""Columns of items of different lengths, one item after another in one array."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from reverb._checks.arguments import check_at_least
from reverb._checks.number_arrays import dtype_name
from reverb.errors import InvalidArgumentError
from reverb.shown_text import shown

__all__ = ["Ragged", "packed_columns"]


class Ragged:
    """A column of `B` items of different lengths, packed into one array.

    Example:
      >>> ragged = reverb.Ragged(np.array([1, 2, 3]), np.array([0, 2, 3], np.int32))
      >>> ragged.to_list()
      [array([1, 2]), array([3])]
      >>> ragged.padded(-1)
      array([[ 1,  2],
             [ 3, -1]])

    Attributes:
      values: `[sum T, ...]`, the steps of all items in order.
      offsets: int32 `[B + 1]`: item `i` is `values[offsets[i]:offsets[i + 1]]`. Kernels for packed
        sequences call this `cu_seqlens`.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: object, offsets: object) -> None:
        """Takes the arrays as they are.

        Raises:
          InvalidArgumentError: If the offsets are not those of the values.
        """
        self.values = np.asarray(values)
        self.offsets = np.asarray(offsets, np.int32)
        ends = self.offsets
        if ends.ndim != 1 or len(ends) == 0 or ends[0] != 0 or (np.diff(ends) < 0).any():
            raise InvalidArgumentError(f"offsets must begin with 0 and increase, got {ends}")
        if self.values.ndim == 0 or ends[-1] != len(self.values):
            raise InvalidArgumentError(
                f"the last offset must be the number of values, got {ends[-1]} and values of shape "
                f"{list(self.values.shape)}"
            )

    @classmethod
    def of_parts(cls, values: object, offsets: object) -> "Ragged":
        """Makes a column without checking that values and offsets fit."""
        ragged = cls.__new__(cls)
        ragged.values, ragged.offsets = values, offsets
        return ragged

    @classmethod
    def concatenate(cls, parts: "Sequence[Ragged]") -> "Ragged":
        """Returns the items of all parts, a copy.

        Args:
          parts: At least one column; their values have the same dtype and row shape `[...]`.
        """
        ends = np.cumsum([0, *(len(part.values) for part in parts)])
        starts = zip(parts, ends, strict=False)
        offsets = [part.offsets[:-1] + start for part, start in starts]
        values = np.concatenate([part.values for part in parts])
        return cls.of_parts(values, np.concatenate([*offsets, ends[-1:]]).astype(np.int32))

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each item, int32 `[B]`."""
        return np.diff(self.offsets)

    @property
    def max_length(self) -> int:
        """Number of steps of the longest item; 0 if there are no items."""
        return int(self.lengths.max(initial=0))

    def padded(self, value: object = 0, *, to_multiple_of: int = 1) -> np.ndarray:
        """Returns the items as one array `[B, T, ...]`, a copy.

        Args:
          value: Padding after the steps of shorter items. For texts 0 is the empty text.
          to_multiple_of: `T` is the length of the longest item, rounded up to a multiple of this.

        Raises:
          InvalidArgumentError: If `to_multiple_of` is below 1.
        """
        to_multiple_of = check_at_least(1, "to_multiple_of", to_multiple_of)
        dtype = self.values.dtype
        if dtype.kind in "OSU" and isinstance(value, int | np.integer) and value == 0:
            value = b"" if dtype.kind == "O" else dtype.type()
        lengths = self.lengths
        length = -(-self.max_length // to_multiple_of) * to_multiple_of
        rows = np.full((len(lengths), length, *self.values.shape[1:]), value, dtype)
        rows[np.arange(length) < lengths[:, None]] = self.values
        return rows

    def to_list(self) -> list[np.ndarray]:
        """Returns the items, each `[T, ...]`; they share the memory of `values`."""
        return list(self)

    def torch_nested(self) -> Any:
        """Returns the items as a nested tensor of PyTorch with layout `torch.jagged`.

        It shares the memory of `values`. Imports PyTorch.

        Raises:
          ImportError: If PyTorch is not installed.
        """
        import torch  # pyright: ignore[reportMissingImports]

        values = self.values
        name = dtype_name(values.dtype)
        if name == "bfloat16" or name.startswith("float8"):  # PyTorch does not know NumPy's.
            bits = np.int16 if values.dtype.itemsize == 2 else np.uint8
            tensor = torch.from_numpy(values.view(bits)).view(getattr(torch, name))
        else:
            tensor = torch.from_numpy(values)
        return torch.nested.nested_tensor_from_jagged(
            tensor,
            torch.from_numpy(self.offsets.astype(np.int64)),
            min_seqlen=int(np.diff(self.offsets).min(initial=self.max_length)),
            max_seqlen=self.max_length,
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Item `index`, `[T, ...]`; shares the memory of `values`."""
        index = range(len(self))[index]
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    @shown
    def __repr__(self) -> str:
        values = f"{self.values.dtype} {list(self.values.shape)}"
        return f"Ragged(values={values}, offsets={self.offsets.tolist()})"


def packed_columns(arrays: list[Any], offsets: list[Any]) -> list[Any]:
    """Returns the columns, changed in place: those with offsets int32 `[B + 1]` become `Ragged`."""
    for at, of in enumerate(offsets):
        if of is not None:
            arrays[at] = Ragged.of_parts(arrays[at], of)
    return arrays


# The public import path.
Ragged.__module__ = "reverb"
