# SPDX-License-Identifier: Apache-2.0
"""Datasets in files of Parquet or Arrow, whose rows are episodes or steps."""

from collections.abc import Iterable, Iterator, Sequence

from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_files import ArrowFile
from reverb.datasets.formats.arrow_rows import Rows
from reverb.datasets.formats.data_files import DataFile, after_files, old_numbers
from reverb.datasets.formats.limits import Limits
from reverb.datasets.formats.parquet_files import ParquetFile, import_pyarrow
from reverb.datasets.formats.parts import Part, episodes_of_parts
from reverb.datasets.left_out import LeftOut

__all__ = ["RowFiles"]


class RowFiles:
    """The files of a dataset, each with a schema of its own; see `Source`.

    Raises:
      InvalidArgumentError: If a field is missing.
      DataLossError: If a file is damaged.
      FailedPreconditionError: If pyarrow is not installed.
    """

    # Whether an episode of steps without `episode_index` may end in a later file.
    _by_flags = False

    def __init__(
        self,
        name: str,
        identity: str,
        files: Sequence[DataFile],
        leave_out: LeftOut,
        limits: Limits,
    ) -> None:
        self.name = name
        self.identity = identity
        self._files = files
        self._leave_out = leave_out
        self._limits = limits
        self._pa = import_pyarrow()
        with self._open(files[0]) as first:
            self._first = self._rows(files[0], first)
        for file in files[1:]:
            if not leave_out.unused:
                break
            with self._open(file) as opened:
                self._rows(file, opened)  # It may have what is left out.
        leave_out.check_parts(name, self._first.fields)
        self._numbers = old_numbers(files, self._count)
        self.num_episodes: int | None = None
        if self._first.rows_are_episodes:
            self.num_episodes = sum(map(self._count, files))

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this position on."""
        position, rest = 0, list(self._files)
        if self._first.rows_are_episodes and not self._first.has_index:
            position, rest = after_files(rest, self._count, start)
        yield from episodes_of_parts(
            self._parts(rest, position),
            self.identity,
            self._limits,
            start=start,
            position=position,
            numbers=self._numbers,
            by_flags=self._by_flags and not self._first.rows_are_episodes,
        )

    def _parts(self, files: Iterable[DataFile], number: int) -> Iterator[Part]:
        for file in files:
            with self._open(file) as opened:
                rows = self._rows(file, opened)
                for part in rows.parts(file, opened.batches(rows.columns), number):
                    yield part
                    number += 1

    def _count(self, file: DataFile) -> int:
        """The number of the episodes, or of their parts, in a file."""
        with self._open(file) as opened:
            rows = self._rows(file, opened)
            if rows.rows_are_episodes:
                return opened.num_rows
            return rows.count(opened.batches(rows.end_columns), str(file.path))

    def _rows(self, file: DataFile, opened: ArrowFile | ParquetFile) -> Rows:
        return Rows(self._pa, opened.schema, str(file.path), self._leave_out, self._limits)

    def _open(self, file: DataFile) -> ArrowFile | ParquetFile:
        if file.path.suffix == ".arrow":
            return ArrowFile(self._pa, file.path, self._limits)
        opened = file.open and file.open()
        return ParquetFile(self._pa, file.path, self._limits, opened, file.damages)
