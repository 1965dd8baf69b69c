# SPDX-License-Identifier: Apache-2.0
"""The columns of exported items. A layout is the columns that all items of a file share."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tree

from reverb import specs
from reverb.command.source import StoredItem
from reverb.errors import InvalidArgumentError, SignatureMismatchError

# The fields of an item besides its data, with their names in all formats.
ITEM_FIELDS = {
    "item/key": np.dtype(np.uint64),
    "item/priority": np.dtype(np.float64),
    "item/times_sampled": np.dtype(np.int32),
    "item/inserted_at": np.dtype(np.float64),
}

# Suffixes that formats append to names of columns.
_SUFFIXES = ("offsets", "string_offsets")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the items of one layout.

    Attributes:
      name: Name of the column in the exported files.
      dtype: NumPy dtype; `object` for strings.
      row_shape: Shape of a row, without the first dimension; `None` if the column of an item is a
        scalar.
    """

    name: str
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...] | None

    @property
    def dtype_name(self) -> str:
        """The dtype's name; `string` for strings."""
        return dtype_name(self.dtype)

    @property
    def shape(self) -> list[int | None]:
        """Shape of an item's column, with `None` for the number of rows."""
        return [] if self.row_shape is None else [None, *self.row_shape]

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype of the values in a file; types that NumPy lacks are stored as their bits.

        The name of the type is stored too; `array.view(ml_dtypes.bfloat16)` restores the values.
        """
        if self.dtype.isbuiltin == 1 and self.dtype.kind in "biufcO":
            return self.dtype
        return np.dtype(f"u{self.dtype.itemsize}")


@dataclasses.dataclass(frozen=True)
class Rows:
    """A column of several items.

    Attributes:
      values: Concatenated rows of all items, `[sum of T, ...]`; of scalars, `[N]`.
      lengths: int64 `[N]`, number of rows of each item; all 1 for scalars.
    """

    values: np.ndarray
    lengths: np.ndarray


@dataclasses.dataclass(frozen=True)
class Batch:
    """Several items with their columns concatenated.

    Attributes:
      fields: Arrays `[N]` by the names of `ITEM_FIELDS`.
      columns: Columns in the order of the layout.
    """

    fields: dict[str, np.ndarray]
    columns: list[Rows]

    @property
    def num_items(self) -> int:
        """Number of items, `N`."""
        return len(self.fields["item/key"])


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns the name of a dtype for output and files; `string` for strings."""
    if dtype.kind == "O":
        return "string"
    return specs.dtype_name(dtype)


def signature_names(signature: object) -> list[str]:
    """Returns the path of each leaf of a signature, such as `a/b/0`, in the order of columns."""
    paths = [path for path, _ in tree.flatten_with_path(signature)]
    return ["/".join(map(str, path)) or f"column_{i}" for i, path in enumerate(paths)]


def layout_key(columns: Sequence[np.ndarray]) -> tuple[Any, ...]:
    """Returns dtypes and shapes without the number of rows; equal for items of one layout."""
    return tuple((dtype_name(it.dtype), it.shape[1:] if it.ndim else None) for it in columns)


def layout_of_item(item: StoredItem, signature: object) -> list[Column]:
    """Returns the layout of an item.

    Raises:
      InvalidArgumentError: If two paths of the signature have the same name.
      SignatureMismatchError: If the signature has another number of columns.
    """
    if signature is None:
        names = [f"column_{i}" for i in range(len(item.columns))]
    else:
        names = _checked_names(signature)
    if len(names) != len(item.columns):
        raise SignatureMismatchError(
            f"item {item.key} has {len(item.columns)} columns, but the table's signature has "
            f"{len(names)}; export it with --no-signature"
        )
    return [
        Column(name, array.dtype, array.shape[1:] if array.ndim else None)
        for name, array in zip(names, item.columns, strict=True)
    ]


def layout_of_signature(signature: object) -> list[Column]:
    """Returns the layout of a table without items, by its signature.

    Without a signature, or if the shape of a row is unknown, it has no columns.
    """
    if signature is None:
        return []
    columns = []
    for name, leaf in zip(_checked_names(signature), tree.flatten(signature), strict=True):
        spec = None if leaf is None else specs.as_spec(leaf)
        if spec is None or spec.shape is None or None in spec.shape[1:]:
            return []
        row_shape = tuple(size for size in spec.shape[1:] if size is not None)
        columns.append(Column(name, spec.dtype, row_shape if spec.shape else None))
    return columns


def make_batch(items: Sequence[StoredItem], layout: Sequence[Column]) -> Batch:
    """Concatenates the columns of several items of one layout."""
    fields = {
        name: np.array([getattr(item, name.removeprefix("item/")) for item in items], dtype)
        for name, dtype in ITEM_FIELDS.items()
    }
    columns = []
    for i, column in enumerate(layout):
        arrays = [item.columns[i] for item in items]
        if column.row_shape is None:
            values, lengths = np.stack(arrays), np.ones(len(arrays), np.int64)
        else:
            values = np.concatenate(arrays)
            lengths = np.array([len(array) for array in arrays], np.int64)
        if column.stored_dtype != column.dtype:
            values = values.view(column.stored_dtype)
        columns.append(Rows(values, lengths))
    return Batch(fields, columns)


def _checked_names(signature: object) -> list[str]:
    names = signature_names(signature)
    taken = set(ITEM_FIELDS)
    for name in names:
        if name in taken:
            raise InvalidArgumentError(
                f"two columns would have the name {name}; export the table with --no-signature"
            )
        taken |= {name, *(f"{name}/{suffix}" for suffix in _SUFFIXES)}
    return names
