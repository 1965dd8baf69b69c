# SPDX-License-Identifier: Apache-2.0
"""Format parquet: Parquet files. A row is an episode, as `reverb export` writes it, or a step."""

import pathlib
from collections.abc import Collection, Iterator

from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_rows import Rows
from reverb.datasets.formats.files import files_of
from reverb.datasets.formats.limits import DEFAULT_LIMITS, Limits
from reverb.datasets.formats.parquet_files import ParquetFile, import_pyarrow

__all__ = ["ParquetSource"]


class ParquetSource:
    """A Parquet file, or a directory of them; see `Source`.

    Raises:
      InvalidArgumentError: If there is no such file, or if a field is missing.
      DataLossError: If a file is damaged.
      FailedPreconditionError: If pyarrow is not installed.
    """

    def __init__(
        self,
        name: str,
        path: str,
        leave_out: Collection[str] = (),
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.name = name
        self._leave_out = leave_out
        self._limits = limits
        self._pa = import_pyarrow()
        self._paths = files_of(name, path, ".parquet")
        self.identity = f"parquet:{pathlib.Path(path).expanduser().resolve()}"
        with self._open(self._paths[0]) as first:
            rows = self._rows(first)
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
            with self._open(path) as file:
                rows = self._rows(file)
                for episode in rows.episodes(file.batches(rows.columns), number):
                    number = episode.number + 1
                    if episode.number >= start:
                        yield episode

    def _rows(self, file: ParquetFile) -> Rows:
        place, identity = file.place, self.identity
        return Rows(self._pa, file.schema, place, identity, self._leave_out, self._limits)

    def _open(self, path: pathlib.Path) -> ParquetFile:
        return ParquetFile(self._pa, path, self._limits)

    def _num_rows(self, path: pathlib.Path) -> int:
        with self._open(path) as file:
            return file.num_rows
