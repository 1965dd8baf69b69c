# SPDX-License-Identifier: Apache-2.0
"""Some columns of a table, chosen by their names in its signature."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from reverb.core import native
from reverb.errors import InvalidArgumentError

__all__ = ["ColumnChoice"]

_LEFT_OUT = object()


class ColumnChoice:
    """All columns of a table, or some.

    Attributes:
      indices: Positions of the columns in the flat structure, increasing; empty: all.
    """

    def __init__(self, table: str, signature: object, columns: object = None) -> None:
        """Finds columns of a table by names or positions; `None` for all.

        A name is a field of the signature, which may have fields itself, or a tuple of names.

        Raises:
          InvalidArgumentError: If there is no such column.
        """
        self.table = table
        self.signature = signature
        flat = [] if signature is None else tree.flatten_with_path(signature)
        self._paths = [path for path, _ in flat]
        self._specs = [spec for _, spec in flat]
        self.indices: list[int] = []
        if columns is not None:
            chosen = {at for column in _as_list(columns) for at in self.find("columns", column)}
            if not chosen:
                raise InvalidArgumentError("columns must name at least one column, got none")
            self.indices = sorted(chosen)

    def find(self, argument: str, column: object) -> list[int]:
        """Returns the positions of the columns with a name."""
        if isinstance(column, int | np.integer) and not isinstance(column, bool):
            count = len(self._paths)
            if column < 0 or (self.signature is not None and column >= count):
                raise InvalidArgumentError(
                    f"{argument} must be from 0 to {count - 1}, got {column}"
                    if self.signature is not None
                    else f"{argument} must be at least 0, got {column}"
                )
            return [int(column)]
        if self.signature is None:
            raise InvalidArgumentError(
                f"table {self.table} has no signature, so its columns have no names; {argument} "
                f"must be their positions, got {column!r}"
            )
        path = column if isinstance(column, tuple) else (column,)
        found = [at for at, known in enumerate(self._paths) if known[: len(path)] == path]
        if not found:
            names = ", ".join(repr(p[0] if len(p) == 1 else p) for p in self._paths)
            raise InvalidArgumentError(
                f"{argument} has {column!r}, which is no column of table {self.table}; its columns "
                f"are {names}"
            )
        return found

    def _chosen(self) -> Sequence[int]:
        return self.indices or range(len(self._paths))

    @property
    def labels(self) -> list[str]:
        """The names of the chosen columns, in order; none if only their positions are known."""
        labels = [self._label(at) for at in self._chosen()]
        return [] if all(label.isdigit() for label in labels) else labels

    @functools.cached_property
    def names(self) -> native.ColumnNames | None:
        """The names of the chosen columns for errors; `None` if only their order is known."""
        chosen = self._chosen()
        return native.ColumnNames([self._label(at) for at in chosen]) if chosen else None

    def name_of(self, at: int) -> str:
        """The name of one of the chosen columns for errors, in quotes, or its position."""
        chosen = self._chosen()
        return self._name(chosen[at] if at < len(chosen) else at)

    def nested(self, columns: Sequence[Any]) -> Any:
        """Nests columns like the signature.

        Other columns are left out of dicts, and are `None` in lists and tuples. Without a signature
        the columns stay a list.
        """
        if self.signature is None:
            return list(columns)
        left = iter(columns)
        nest = _filled(self.signature, iter(range(len(self._paths))), set(self._chosen()), left)
        return None if nest is _LEFT_OUT else nest

    def empty_columns(self) -> list[np.ndarray]:
        """Returns columns without items, `[0, T, ...]`; none if the table has no signature.

        Sizes that the signature leaves open are 0.
        """
        return [_empty_column(self._specs[at]) for at in self._chosen() if at < len(self._specs)]

    def has_steps(self, at: int) -> bool:
        """Returns whether items may have different lengths in one of the chosen columns."""
        shape = _shape_of(self._specs[self._chosen()[at]])
        return bool(shape) and shape[0] is None

    def pad_values(self, pad: object, num_columns: int) -> list[Any]:
        """Returns the value that pads each column of a batch.

        `pad` is one for all, a list with one for each, or a dict by name; 0 for other columns.

        Raises:
          InvalidArgumentError: If a name or the number of values is wrong.
        """
        if isinstance(pad, Mapping):
            values: dict[int, Any] = {}
            for name, value in pad.items():
                values.update(dict.fromkeys(self.find("pad", name), value))
            positions = self.indices or range(num_columns)
            return [values.get(at, 0) for at in positions]
        if isinstance(pad, list | tuple):
            if len(pad) != num_columns:
                raise InvalidArgumentError(
                    f"pad must have a value for each of the {num_columns} columns, got {len(pad)}"
                )
            return list(pad)
        return [pad] * num_columns

    def check_pads(self, pad: object) -> None:
        """Checks padding values against the dtypes of the signature.

        Raises:
          InvalidArgumentError: If a column cannot hold its value.
        """
        if self.signature is None:
            return
        chosen = self._chosen()
        for at, value in zip(chosen, self.pad_values(pad, len(chosen)), strict=True):
            dtype = getattr(self._specs[at], "dtype", None)
            dtype = getattr(dtype, "as_numpy_dtype", dtype)
            if dtype is not None and np.dtype(dtype).kind not in "OSU":
                check_pad(self._name(at), value, np.dtype(dtype))

    def _name(self, at: int) -> str:
        return repr(self._label(at)) if at < len(self._paths) else str(at)

    def _label(self, at: int) -> str:
        """The path of a column of the table, or its position where it has no path."""
        path = self._paths[at] if at < len(self._paths) else ()
        return "/".join(map(str, path)) if path else str(at)

    def check_structure(self, name: str, nest: object) -> None:
        """Checks that the dicts of a nest have the same fields as those of the signature.

        Raises:
          InvalidArgumentError: If they have others.
        """
        if self.signature is not None:
            _check_fields(name, nest, self.nested([None] * len(self._chosen())))


def _shape_of(spec: Any) -> list[int | None]:
    """Returns the sizes of an item in a column; one that is unknown, if the rank is unknown."""
    shape = spec.shape
    if shape is None or getattr(shape, "rank", 0) is None:
        return [None]
    # A shape of TensorFlow has a method for this.
    return list(shape.as_list() if hasattr(shape, "as_list") else shape)


def _empty_column(spec: Any) -> np.ndarray:
    dtype = getattr(spec.dtype, "as_numpy_dtype", spec.dtype)
    dtype = np.dtype(dtype)
    return np.empty(
        (0, *(size or 0 for size in _shape_of(spec))),
        object if dtype.kind in "OSU" else dtype,
    )


def check_pad(column: str, value: object, dtype: np.dtype) -> None:
    """Checks that a column can hold a value.

    Raises:
      InvalidArgumentError: If it cannot.
    """
    try:
        np.full((), value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"pad of column {column} must be a value of {dtype}, got {value!r}: {error}"
        ) from None


def _as_list(columns: Any) -> list[Any]:
    if isinstance(columns, str | int | np.integer):
        return [columns]
    return list(columns)


def _filled(
    structure: object, index: Iterator[int], chosen: set[int], left: Iterator[Any]
) -> object:
    """Returns a nest of the chosen columns, or `_LEFT_OUT` if the structure has none of them."""
    if isinstance(structure, Mapping):
        items = [(key, _filled(structure[key], index, chosen, left)) for key in sorted(structure)]
        fields = {key: value for key, value in items if value is not _LEFT_OUT}
        return fields if fields or not structure else _LEFT_OUT
    if isinstance(structure, list | tuple):
        values = [_filled(child, index, chosen, left) for child in structure]
        if values and all(value is _LEFT_OUT for value in values):
            return _LEFT_OUT
        values = [None if value is _LEFT_OUT else value for value in values]
        if isinstance(structure, tuple) and hasattr(structure, "_fields"):
            named_tuple: Any = type(structure)
            return named_tuple(*values)
        return list(values) if isinstance(structure, list) else tuple(values)
    return next(left) if next(index) in chosen else _LEFT_OUT


def _check_fields(name: str, nest: object, wanted: object) -> None:
    if isinstance(nest, Mapping) and isinstance(wanted, Mapping):
        if nest.keys() != wanted.keys():
            raise InvalidArgumentError(
                f"{name} must have the fields {sorted(wanted)}, got {sorted(nest)}"
            )
        for key, child in wanted.items():
            _check_fields(f"{name}[{key!r}]", nest[key], child)
    elif isinstance(nest, Mapping) != isinstance(wanted, Mapping):
        raise InvalidArgumentError(
            f"{name} must be like the table's signature, {_kind(wanted)}, got {_kind(nest)}"
        )


def _kind(nest: object) -> str:
    if nest is None:
        return "an array"
    return "a dict" if isinstance(nest, Mapping) else f"{type(nest).__name__}"
