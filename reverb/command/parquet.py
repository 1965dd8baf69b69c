# SPDX-License-Identifier: Apache-2.0
"""Format parquet: Parquet files for data frames and databases, written by pyarrow.

A row is an item. `item/key` is uint64, `item/priority` float64, `item/times_sampled` int32 and
`item/inserted_at` float64 (seconds since 1970). A column `[T, ...]` is a list of its rows, with a
nested list of fixed size for each further dimension; a column whose items are scalars is a plain
value. Strings are binary, complex numbers are lists of two, and types that NumPy lacks, such as
bfloat16, are their bits in unsigned integers. The metadata of each field has the `shape` of an
item's column (`null` for the number of rows) and the `dtype`.

To read item `i` of the column `a/b`:

    table = pyarrow.parquet.read_table("out")
    field = table.schema.field("a/b")
    dtype, shape = field.metadata[b"dtype"].decode(), json.loads(field.metadata[b"shape"])
    item = np.array(table["a/b"][i].as_py(), dtype).reshape([-1, *shape[1:]])
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from reverb.command.columns import ITEM_FIELDS, Batch, Column, Rows
from reverb.datasets.formats.nested_lists import list_type, lists, nested_rows
from reverb.datasets.formats.parquet_files import import_pyarrow

SUFFIXES = (".parquet",)


class ParquetFile:
    """Writes one Parquet file, a row group for each batch.

    Raises:
      FailedPreconditionError: If pyarrow is not installed.
    """

    def __init__(self, path: pathlib.Path, layout: Sequence[Column]) -> None:
        self._pa = import_pyarrow()
        self._layout = layout
        fields = [
            self._pa.field(name, self._pa.from_numpy_dtype(dtype), nullable=False)
            for name, dtype in ITEM_FIELDS.items()
        ]
        self._schema = self._pa.schema([*fields, *map(self._field, layout)])
        self._writer = self._pa.parquet.ParquetWriter(str(path), self._schema)

    def write(self, batch: Batch) -> None:
        """Appends a batch of items."""
        arrays = [self._pa.array(values) for values in batch.fields.values()]
        arrays += [
            self._array(column, rows)
            for column, rows in zip(self._layout, batch.columns, strict=True)
        ]
        self._writer.write_batch(self._pa.record_batch(arrays, schema=self._schema))

    def close(self) -> None:
        """Completes the file."""
        self._writer.close()

    def abandon(self) -> None:
        """Closes the file although it is incomplete."""
        self._writer.close()

    @staticmethod
    def stored_as(column: Column) -> str:
        """Returns how a column is stored, for the description of the export."""
        return "binary" if column.dtype.kind == "O" else column.stored_dtype.name

    def _field(self, column: Column) -> object:
        type_ = list_type(self._pa, self._value_type(column), _inner_shape(column))
        if column.row_shape is not None:
            type_ = self._pa.list_(type_)
        metadata = {"shape": json.dumps(column.shape), "dtype": column.dtype_name}
        return self._pa.field(column.name, type_, nullable=False, metadata=metadata)

    def _value_type(self, column: Column) -> object:
        if column.dtype.kind == "O":
            return self._pa.binary()
        return self._pa.from_numpy_dtype(_real(column.stored_dtype))

    def _array(self, column: Column, rows: Rows) -> object:
        """Makes the Arrow array of several items."""
        values = np.ascontiguousarray(rows.values)
        if values.dtype.kind == "c":
            values = values.view(_real(values.dtype)).reshape(*values.shape, 2)
        array = nested_rows(self._pa, values, self._value_type(column))
        return array if column.row_shape is None else lists(self._pa, rows.lengths, array)


def _inner_shape(column: Column) -> tuple[int, ...]:
    """Returns the shape of an element of the outermost list."""
    pair = (2,) if column.dtype.kind == "c" else ()
    return (*(column.row_shape or ()), *pair)


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
