# SPDX-License-Identifier: Apache-2.0
"""Format parquet: Parquet files. A row is an episode, as `reverb export` writes it, or a step."""

import pathlib
from collections.abc import Iterable, Iterator

from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_rows import Rows
from reverb.datasets.formats.data_files import DataFile, after_files, old_numbers
from reverb.datasets.formats.files import files_of
from reverb.datasets.formats.limits import DEFAULT_LIMITS, Limits
from reverb.datasets.formats.parquet_files import ParquetFile, import_pyarrow
from reverb.datasets.formats.parts import Part, episodes_of_parts
from reverb.datasets.left_out import NOTHING, LeftOut

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
        leave_out: LeftOut = NOTHING,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.name = name
        self._leave_out = leave_out
        self._limits = limits
        self._pa = import_pyarrow()
        self._files = files_of(name, path, ".parquet")
        self.identity = f"parquet:{pathlib.Path(path).expanduser().resolve()}"
        with self._open(self._files[0]) as first:
            rows = self._rows(first)
        for it in self._files[1:]:
            if not leave_out.unused:
                break
            with self._open(it) as file:
                self._rows(file)  # It may have what is left out.
        leave_out.check_parts(name, rows.fields)
        self._has_index = rows.has_index
        self._rows_are_episodes = rows.rows_are_episodes
        self._numbers = old_numbers(self._files, self._count)
        self.num_episodes: int | None = None
        if rows.rows_are_episodes:
            self.num_episodes = sum(map(self._count, self._files))

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this position on."""
        position, rest = 0, list(self._files)
        if self._rows_are_episodes and not self._has_index:
            position, rest = after_files(rest, self._count, start)
        yield from episodes_of_parts(
            self._parts(rest, position),
            self.identity,
            self._limits,
            start=start,
            position=position,
            numbers=self._numbers,
        )

    def _parts(self, files: Iterable[DataFile], number: int) -> Iterator[Part]:
        for it in files:
            with self._open(it) as file:
                rows = self._rows(file)
                for part in rows.parts(it, file.batches(rows.columns), number):
                    yield part
                    number += 1

    def _rows(self, file: ParquetFile) -> Rows:
        return Rows(self._pa, file.schema, file.place, self._leave_out, self._limits)

    def _open(self, file: DataFile) -> ParquetFile:
        return ParquetFile(self._pa, file.path, self._limits)

    def _count(self, file: DataFile) -> int:
        """The number of the episodes, or of their parts, in a file."""
        with self._open(file) as opened:
            if self._rows_are_episodes:
                return opened.num_rows
            rows = self._rows(opened)
            return rows.count(opened.batches(rows.end_columns), opened.place)
