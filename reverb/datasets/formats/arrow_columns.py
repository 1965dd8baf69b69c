# SPDX-License-Identifier: Apache-2.0
"""Columns of Arrow as arrays of NumPy, for Parquet files and Hugging Face datasets.

A row is an episode, if its fields are lists of rows; otherwise it is a step.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.files import parsed, restored
from reverb.datasets.formats.limits import MAX_DEPTH, MAX_FIELDS
from reverb.datasets.left_out import remedy

__all__ = ["Column", "fields_of", "has_episodes", "numbers_of", "read"]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of some rows.

    Attributes:
      values: The rows of all episodes, `[R, ...]`.
      offsets: int64 `[N + 1]`, where each episode begins; `None` if a row is a step.
    """

    values: np.ndarray
    offsets: np.ndarray | None


def fields_of(pa: object, schema: Any, place: str) -> dict[str, Any]:
    """Returns the fields of a schema by their names; those of structs are `outer/inner`.

    Raises:
      InvalidArgumentError: If there are too many, if they are too deep, or if two have one name.
    """
    found: dict[str, Any] = {}
    with reading(place, (UnicodeDecodeError,)):
        for outer in schema:
            for name, field in _flat(pa, outer.name, outer, place):
                if name in found:
                    raise errors.InvalidArgumentError(f"{place}: field {name}: is there twice")
                found[name] = field
                if len(found) > MAX_FIELDS:
                    raise errors.InvalidArgumentError(f"{place}: has more than {MAX_FIELDS} fields")
    return found


def has_episodes(pa: Any, field: Any) -> bool:
    """Whether a row of the rewards is a list of them."""
    return _is_list(pa, field.type)


def read(
    pa: Any, batch: Any, fields: Mapping[str, Any], episodes: bool, where: str
) -> dict[str, Column]:
    """Converts the columns of a batch, of which a row is an episode or a step.

    Raises:
      InvalidArgumentError: If a field has no numbers, misses a value, or has rows of different
        shapes.
      DataLossError: If a field is not what the description of the file says.
    """
    columns = {}
    names = {name: index for index, name in enumerate(batch.schema.names)}
    for name, field in fields.items():
        place = f"{where}, field {name}"
        # Names of plain columns may have a slash, too.
        first, *rest = [name] if name in names else name.split("/")
        with reading(place, (KeyError, AttributeError, pa.ArrowException)):
            array = batch.column(names[first])
            for key in rest:
                array = array.field(key)
        try:
            columns[name] = _column(pa, array, field, episodes, place)
        except errors.InvalidArgumentError as error:
            raise errors.InvalidArgumentError(f"{error}{remedy(name)}") from None
    return columns


def _flat(pa: Any, name: str, field: Any, place: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        raise errors.InvalidArgumentError(
            f"{place}: field {name[:80]}...: is in more than {MAX_DEPTH} nests"
        )
    if pa.types.is_struct(field.type):
        for inner in field.type:
            yield from _flat(pa, f"{name}/{inner.name}", inner, place, depth + 1)
    else:
        yield name, field


def _column(pa: Any, array: Any, field: Any, episodes: bool, where: str) -> Column:
    metadata = field.metadata or {}
    offsets = None
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if episodes:
        if not _is_list(pa, array.type):
            raise errors.InvalidArgumentError(f"{where}: must be a list of rows, got {array.type}")
        _check_no_null(array, where)
        if pa.types.is_fixed_size_list(array.type):
            offsets = np.arange(len(array) + 1, dtype=np.int64) * array.type.list_size
        else:
            offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
            offsets = offsets - offsets[0]
        array = array.flatten()
    num_rows = len(array)
    values, sizes = _flat_numbers(pa, array, where)
    problem = "is not what the description in the file says"
    with reading(where, (ValueError, TypeError), problem):
        dtype_name = metadata.get(b"dtype", b"").decode() or None
        shape = metadata.get(b"shape")
        if dtype_name in ("complex64", "complex128"):
            values = values.view(dtype_name)
            sizes = sizes[:-1]
        else:
            values = restored(values, dtype_name, where)
        if shape is not None and 0 in (declared := parsed(shape, where)[1:]):
            sizes = declared  # Lists of size 0 have no rows to count.
        return Column(values.reshape(num_rows, *sizes), offsets)


def numbers_of(pa: object, array: Any, where: str) -> np.ndarray:
    """Returns the rows of an array, `[R, ...]`.

    Raises:
      InvalidArgumentError: As `read`.
    """
    values, sizes = _flat_numbers(pa, array, where)
    return values.reshape(len(array), *sizes)


def _flat_numbers(pa: Any, array: Any, where: str) -> tuple[np.ndarray, list[int]]:
    """The numbers in an array of lists, and the sizes of the lists."""
    sizes: list[int] = []
    while _is_list(pa, array.type):
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        _check_no_null(array, where)
        sizes.append(_list_size(pa, array, where))
        array = array.flatten()
    type_ = array.type
    if not (
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_)
    ):
        kind = "text" if pa.types.is_string(type_) or pa.types.is_large_string(type_) else type_
        raise errors.InvalidArgumentError(f"{where}: must be numbers, got {kind}")
    _check_no_null(array, where)
    return array.to_numpy(zero_copy_only=False), sizes


def _is_list(pa: Any, type_: Any) -> bool:
    if isinstance(type_, pa.ExtensionType):
        type_ = type_.storage_type
    is_ = pa.types
    return is_.is_list(type_) or is_.is_large_list(type_) or is_.is_fixed_size_list(type_)


def _list_size(pa: Any, array: Any, where: str) -> int:
    """The size of all lists of an array."""
    if pa.types.is_fixed_size_list(array.type):
        return array.type.list_size
    lengths = np.diff(array.offsets.to_numpy(zero_copy_only=False))
    if not len(lengths):
        return 0
    if (lengths != lengths[0]).any():
        raise errors.InvalidArgumentError(
            f"{where}: has rows of different shapes, lists of {lengths.min()} and of "
            f"{lengths.max()}"
        )
    return int(lengths[0])


def _check_no_null(array: Any, where: str) -> None:
    if array.null_count:
        raise errors.InvalidArgumentError(f"{where}: {array.null_count} values are missing")
