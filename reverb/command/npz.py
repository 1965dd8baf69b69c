# SPDX-License-Identifier: Apache-2.0
"""Format npz: `.npz` files for NumPy, which can be read without pickle.

The arrays of a file with `N` items:

* `item/key` uint64, `item/priority` float64, `item/times_sampled` int32 and `item/inserted_at`
  float64 (seconds since 1970), each `[N]`;
* for each column, the concatenated rows of all items, `[sum of T, ...]`, and int64
  `<column>/offsets` `[N + 1]`: item `i` is `file[name][offsets[i] : offsets[i + 1]]`. If all items
  have the same length `T`, `file[name].reshape(N, T, ...)` is a view;
* a column whose items are scalars has no offsets: it is `[N]`, and item `i` is `file[name][i]`;
* strings are stored as their concatenated bytes, uint8, with int64 `<column>/string_offsets`
  `[number of strings + 1]`; the column's offsets and shape count strings;
* types that NumPy lacks, such as bfloat16, are stored as their bits in unsigned integers.

To read item `i` of the column `a/b`:

    file = np.load("out/part-00000.npz")
    rows, offsets = file["a/b"], file["a/b/offsets"]
    item = rows[offsets[i] : offsets[i + 1]]
"""

import os
import pathlib
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from reverb.command.columns import ITEM_FIELDS, Batch, Column, Rows

SUFFIXES = (".npz",)


class NpzFile:
    """Writes one `.npz` file in batches, with at most one batch in memory.

    The arrays grow in temporary files, because a `.npz` file stores them one after another, each
    with its length first.
    """

    def __init__(self, path: pathlib.Path, layout: Sequence[Column]) -> None:
        self._path = path
        self._members: dict[str, _Member] = {}
        for name, dtype in ITEM_FIELDS.items():
            self._add(name, dtype, ())
        self._columns = [_column_writer(column)(self, column) for column in layout]

    def write(self, batch: Batch) -> None:
        """Appends a batch of items."""
        for name, values in batch.fields.items():
            self._members[name].append(values)
        for column, rows in zip(self._columns, batch.columns, strict=True):
            column.append(rows)

    def close(self) -> None:
        """Joins the arrays into the file."""
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED) as archive:
            for name, member in self._members.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    member.copy_to(file)
        self.abandon()

    def abandon(self) -> None:
        """Removes the temporary files."""
        for member in self._members.values():
            member.remove()

    def _add(self, name: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> "_Member":
        self._members[name] = _Member(self._path.parent, dtype, row_shape)
        return self._members[name]

    @staticmethod
    def stored_as(column: Column) -> str:
        """Returns how a column is stored, for the description of the export."""
        if column.dtype.kind == "O":
            return "bytes, string_offsets"
        return column.stored_dtype.name


class _Member:
    """An array that grows row by row in a file."""

    def __init__(
        self, directory: pathlib.Path, dtype: np.dtype[Any], row_shape: tuple[int, ...]
    ) -> None:
        self._dtype = dtype
        self._row_shape = row_shape
        self._num_rows = 0
        # Next to the output, on a disk that needs the space anyway.
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115

    def append(self, rows: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self._num_rows += len(rows)

    def copy_to(self, file: IO[bytes]) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._num_rows, *self._row_shape),
        }
        np.lib.format.write_array_header_1_0(file, header)
        self._file.seek(0, os.SEEK_SET)
        shutil.copyfileobj(self._file, file, 1 << 20)

    def remove(self) -> None:
        self._file.close()


class _Offsets:
    """A growing array of offsets: the start of each element, and the end of the last one."""

    def __init__(self, member: _Member) -> None:
        self._member = member
        self._end = 0
        member.append(np.zeros(1, np.int64))

    def append(self, lengths: np.ndarray) -> None:
        ends = self._end + np.cumsum(lengths, dtype=np.int64)
        self._member.append(ends)
        self._end = int(ends[-1]) if len(ends) else self._end


class _NumbersColumn:
    """A column of numbers."""

    def __init__(self, file: NpzFile, column: Column) -> None:
        row_shape = column.row_shape or ()
        self._values = file._add(column.name, column.stored_dtype, row_shape)
        self._offsets = _row_offsets(file, column)

    def append(self, rows: Rows) -> None:
        self._values.append(rows.values)
        if self._offsets is not None:
            self._offsets.append(rows.lengths)


class _StringsColumn:
    """A column of strings, stored as bytes, because NumPy's strings lose trailing zeros."""

    def __init__(self, file: NpzFile, column: Column) -> None:
        int64 = np.dtype(np.int64)
        self._bytes = file._add(column.name, np.dtype(np.uint8), ())
        self._string_offsets = _Offsets(file._add(f"{column.name}/string_offsets", int64, ()))
        self._offsets = _row_offsets(file, column)

    def append(self, rows: Rows) -> None:
        strings = rows.values.ravel().tolist()
        self._bytes.append(np.frombuffer(b"".join(strings), np.uint8))
        self._string_offsets.append(np.fromiter(map(len, strings), np.int64, len(strings)))
        if self._offsets is not None:
            self._offsets.append(rows.lengths)


def _column_writer(column: Column) -> type[_NumbersColumn] | type[_StringsColumn]:
    return _StringsColumn if column.dtype.kind == "O" else _NumbersColumn


def _row_offsets(file: NpzFile, column: Column) -> _Offsets | None:
    if column.row_shape is None:
        return None
    return _Offsets(file._add(f"{column.name}/offsets", np.dtype(np.int64), ()))
