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

from reverb.command.columns import ITEM_FIELDS, Batch, Column

SUFFIXES = (".npz",)


class NpzFile:
    """Writes one `.npz` file in batches, with at most one batch in memory.

    The arrays grow in temporary files, because a `.npz` file stores them one after another, each
    with its length first.
    """

    def __init__(self, path: pathlib.Path, layout: Sequence[Column]) -> None:
        self._path = path
        self._layout = layout
        self._members = {
            name: _Member(path.parent, dtype, ()) for name, dtype in ITEM_FIELDS.items()
        }
        for column in layout:
            name, is_text = column.name, column.dtype.kind == "O"
            # Strings are stored as bytes, because NumPy's strings lose trailing zeros.
            dtype = np.dtype(np.uint8) if is_text else column.stored_dtype
            row_shape = () if is_text else column.row_shape or ()
            self._members[name] = _Member(path.parent, dtype, row_shape)
            if is_text:
                self._members[f"{name}/string_offsets"] = _Offsets(path.parent)
            if column.row_shape is not None:
                self._members[f"{name}/offsets"] = _Offsets(path.parent)

    def write(self, batch: Batch) -> None:
        """Appends a batch of items."""
        for name, values in batch.fields.items():
            self._members[name].append(values)
        for column, rows in zip(self._layout, batch.columns, strict=True):
            values = rows.values
            if column.dtype.kind == "O":
                strings = values.ravel().tolist()
                values = np.frombuffer(b"".join(strings), np.uint8)
                lengths = np.fromiter(map(len, strings), np.int64, len(strings))
                self._members[f"{column.name}/string_offsets"].append(lengths)
            self._members[column.name].append(values)
            if column.row_shape is not None:
                self._members[f"{column.name}/offsets"].append(rows.lengths)

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


class _Offsets(_Member):
    """Offsets that grow by lengths: the start of each element, and the end of the last one."""

    def __init__(self, directory: pathlib.Path) -> None:
        super().__init__(directory, np.dtype(np.int64), ())
        self._end = 0
        super().append(np.zeros(1, np.int64))

    def append(self, rows: np.ndarray) -> None:
        ends = self._end + np.cumsum(rows, dtype=np.int64)
        super().append(ends)
        self._end = int(ends[-1]) if len(ends) else self._end
