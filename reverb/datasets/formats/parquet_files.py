# SPDX-License-Identifier: Apache-2.0
"""Parquet files, whose sizes are checked before they are decoded."""

import pathlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from reverb import errors
from reverb._checks.plain_files import open_file
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.limits import BATCH_BYTES, MAX_FOOTER_BYTES, MAX_ROWS, Limits
from reverb.datasets.formats.parquet_pages import RowGroup, row_groups_of, sizes_of
from reverb.datasets.library import library

__all__ = ["ParquetFile", "import_pyarrow"]

# Parquet files and those of Arrow may name a pickled type in a version before.
_FIRST_VERSION = 15


def import_pyarrow() -> Any:
    """Imports pyarrow with its Parquet part.

    Raises:
      FailedPreconditionError: If it is not installed, or of a version that unpickles types.
    """
    library("pyarrow", "pyarrow>=15", "parquet", "pyarrow.parquet")
    pa = library("pyarrow", "pyarrow>=15", "parquet")
    if int(pa.__version__.partition(".")[0]) < _FIRST_VERSION:
        raise errors.FailedPreconditionError(
            f"pyarrow {pa.__version__} is installed, which may run programs that are in a file; "
            "pip install 'pyarrow>=15'"
        )
    return pa


class ParquetFile:
    """An open Parquet file.

    Attributes:
      place: Where it is, for errors.
      schema: Its schema, of Arrow.
      num_rows: Number of its rows.

    Args:
      pa: The module pyarrow.
      path: Its path, or the name of `file`.
      limits: Bounds a row group.
      file: The file, if it is not on this machine. It is closed at the end.
      damages: Errors of that file.
      problem: Text of the error for a file that cannot be opened.

    Raises:
      DataLossError: If it is damaged.
    """

    def __init__(
        self,
        pa: Any,
        path: pathlib.Path,
        limits: Limits,
        file: BinaryIO | None = None,
        damages: tuple[type[BaseException], ...] = (),
        problem: str = "is not a complete Parquet file",
    ) -> None:
        self.place = str(path)
        self._limits = limits
        self._damages = (pa.ArrowException, OSError, ValueError, KeyError, struct.error, *damages)
        with reading(self.place, self._damages, problem):
            self._heads = open_file(path) if file is None else file
            try:
                self._num_bytes = _checked_size(self._heads)
                given = str(path) if file is None else file
                self._file = pa.parquet.ParquetFile(given, memory_map=file is None)
                self.schema = self._file.schema_arrow
                _ = self.schema.names  # Some may be no text.
                self.num_rows = self._file.metadata.num_rows
            except BaseException:
                self._heads.close()
                raise

    def __enter__(self) -> "ParquetFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self._heads.close()

    def batches(self, columns: Sequence[str], max_rows: int = MAX_ROWS) -> Iterator[Any]:
        """Yields these columns, in batches of few rows.

        Raises:
          InvalidArgumentError: If a row group is too large.
          DataLossError: If it is damaged.
        """
        with reading(self.place, self._damages):
            for index, group in enumerate(row_groups_of(_footer(self._heads))):
                rows = min(max_rows, self._checked_rows(index, group, columns))
                yield from self._file.iter_batches(rows, row_groups=[index], columns=list(columns))

    def _checked_rows(self, index: int, group: RowGroup, columns: Sequence[str]) -> int:
        """Checks the sizes of a row group, and returns how many rows of it are decoded at a time.

        The rows of a list may be of any size: one may have nearly all values of the group. So the
        group is the unit that is bounded. Columns without lists have a value for each row.
        """
        where = f"{self.place}: row group {index}"
        schema = self._file.schema
        if len(group.columns) != len(schema):
            raise errors.DataLossError(f"{where}: has {len(group.columns)} columns")
        wanted = set(columns)
        total = in_lists = 0
        rows = MAX_ROWS
        for number, column in enumerate(group.columns):
            described = schema.column(number)
            path = described.path
            parts = path.split(".")
            if not any(".".join(parts[: it + 1]) in wanted for it in range(len(parts))):
                continue
            kind, length = described.physical_type, described.length
            chunk = sizes_of(self._heads, self._num_bytes, column, kind, length)
            self._limits.check(f"{where}, field {path}", "a page", chunk.page_bytes)
            total += chunk.num_bytes
            if described.max_repetition_level:
                in_lists += chunk.num_bytes + chunk.num_values * chunk.dictionary_bytes
            if chunk.dictionary_bytes:
                rows = min(rows, max(1, BATCH_BYTES // chunk.dictionary_bytes))
        self._limits.check(where, "it", in_lists)
        return max(1, min(rows, group.num_rows * BATCH_BYTES // max(total, 1)))


def _footer(file: BinaryIO) -> bytes:
    file.seek(-8, 2)
    (size,) = struct.unpack("<I", file.read(4))
    file.seek(-8 - size, 2)
    return file.read(size)


def _checked_size(file: BinaryIO) -> int:
    """The size of a file, whose footer is not too large.

    Raises:
      ValueError: If it is no Parquet file.
    """
    num_bytes = file.seek(0, 2)
    if num_bytes < 12:
        raise ValueError(f"it has {num_bytes} bytes")
    file.seek(-8, 2)
    size, magic = struct.unpack("<I4s", file.read(8))
    if magic not in (b"PAR1", b"PARE"):
        raise ValueError("it does not end as one")
    if size > min(num_bytes, MAX_FOOTER_BYTES):
        raise ValueError(
            f"its footer claims {size:,} bytes, more than the file or {MAX_FOOTER_BYTES:,}"
        )
    return num_bytes
