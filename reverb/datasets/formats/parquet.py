# SPDX-License-Identifier: Apache-2.0
"""Format parquet: Parquet files. A row is an episode, as `reverb export` writes it, or a step."""

import pathlib
from collections.abc import Collection, Iterator
from typing import Any

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_rows import Rows
from reverb.datasets.formats.files import files_of
from reverb.datasets.library import library

__all__ = ["ParquetSource", "import_pyarrow"]

# Size of the data that is decoded at a time.
_BATCH_BYTES = 16 << 20
_MAX_BATCH_ROWS = 65_536


def import_pyarrow() -> Any:
    """Imports pyarrow with its Parquet part.

    Raises:
      FailedPreconditionError: If it is not installed.
    """
    library("pyarrow", "pyarrow>=15", "parquet", "pyarrow.parquet")
    return library("pyarrow", "pyarrow>=15", "parquet")


class ParquetSource:
    """A Parquet file, or a directory of them; see `Source`.

    Raises:
      InvalidArgumentError: If there is no such file, or if a field is missing.
      DataLossError: If a file is damaged.
      FailedPreconditionError: If pyarrow is not installed.
    """

    def __init__(self, name: str, path: str, leave_out: Collection[str] = ()) -> None:
        self.name = name
        self._leave_out = leave_out
        self._pa = import_pyarrow()
        self._paths = files_of(name, path, ".parquet")
        self.identity = f"parquet:{pathlib.Path(path).expanduser().resolve()}"
        with self._open(self._paths[0]) as first:
            rows = self._rows(first, self._paths[0])
        self._rows_are_episodes = rows.rows_are_episodes
        self.num_episodes: int | None = None
        if rows.rows_are_episodes:
            self.num_episodes = sum(self._num_rows(path) for path in self._paths)

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this number on."""
        number = 0
        for path in self._paths:
            if self._rows_are_episodes and number + (num_rows := self._num_rows(path)) <= start:
                number += num_rows
                continue
            for episode in self._of_file(path, number):
                number = episode.number + 1
                if episode.number >= start:
                    yield episode

    def _of_file(self, path: pathlib.Path, number: int) -> Iterator[Episode]:
        with self._open(path) as file:
            rows = self._rows(file, path)
            groups = [file.metadata.row_group(it) for it in range(file.num_row_groups)]
            size = sum(it.total_byte_size for it in groups)
            count = sum(it.num_rows for it in groups)
            batch_rows = max(1, min(_MAX_BATCH_ROWS, count * _BATCH_BYTES // max(size, 1)))
            batches = self._batches(file, path, batch_rows)
            yield from rows.episodes(batches, number)

    def _rows(self, file: Any, path: pathlib.Path) -> Rows:
        return Rows(self._pa, file.schema_arrow, str(path), self.identity, self._leave_out)

    def _batches(self, file: Any, path: pathlib.Path, batch_rows: int) -> Iterator[Any]:
        try:
            yield from file.iter_batches(batch_size=batch_rows)
        except (self._pa.ArrowException, OSError) as error:
            raise errors.DataLossError(f"{path}: cannot be read: {error}") from None

    def _open(self, path: pathlib.Path) -> Any:
        try:
            return self._pa.parquet.ParquetFile(path)
        except (self._pa.ArrowException, OSError) as error:
            raise errors.DataLossError(f"{path}: is no complete Parquet file: {error}") from None

    def _num_rows(self, path: pathlib.Path) -> int:
        with self._open(path) as file:
            return file.metadata.num_rows
