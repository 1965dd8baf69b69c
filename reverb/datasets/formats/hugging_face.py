# SPDX-License-Identifier: Apache-2.0
"""Format hf: datasets of Hugging Face, with an episode or a step a row.

A directory is read by the names of its files, Parquet or Arrow: what its README or its JSON says of
other files, of addresses or of programs is not followed. A dataset of the hub is read in the same
way, from the hub or from what the library has in its cache.
"""

import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_files import ArrowFile
from reverb.datasets.formats.arrow_rows import Rows
from reverb.datasets.formats.data_files import DataFile, after_files, old_numbers
from reverb.datasets.formats.episode_rows import EpisodeRows
from reverb.datasets.formats.hugging_face_files import split_of
from reverb.datasets.formats.limits import DEFAULT_LIMITS, Limits
from reverb.datasets.formats.parquet_files import ParquetFile, import_pyarrow
from reverb.datasets.formats.parts import Part, episodes_of_parts
from reverb.datasets.formats.placing import new_directory
from reverb.datasets.left_out import NOTHING, LeftOut
from reverb.datasets.library import library

__all__ = ["HuggingFaceSource", "save"]

_REQUIREMENT = "datasets>=3"

# Size of the data in a file of a dataset that is written.
_FILE_BYTES = 256 << 20


def _datasets() -> Any:
    return library("datasets", _REQUIREMENT, "hf")


class HuggingFaceSource:
    """A dataset of Hugging Face; see `Source`.

    It is an id, or the path of a directory of `save_to_disk` or of files.

    Raises:
      InvalidArgumentError: If there is no such dataset or split, or if a field is missing.
      DataLossError: If a file is damaged.
      FailedPreconditionError: If the library is not installed.
    """

    def __init__(
        self,
        name: str,
        dataset: str,
        leave_out: LeftOut = NOTHING,
        split: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.name = name
        self._pa = import_pyarrow()
        self._limits = limits
        path = pathlib.Path(dataset).expanduser()
        where = str(path.resolve()) if path.exists() else dataset
        self._files, split = split_of(name, path, dataset, split, _datasets)
        self.identity = f"hf:{where}#{split}"
        with self._open(self._files[0]) as first:
            self._rows = Rows(self._pa, first.schema, name, leave_out, limits)
        leave_out.check_parts(name, self._rows.fields)
        self._numbers = old_numbers(self._files, self._count)
        self.num_episodes: int | None = None
        if self._rows.rows_are_episodes:
            self.num_episodes = sum(map(self._count, self._files))

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this position on."""
        position, rest = 0, list(self._files)
        if self._rows.rows_are_episodes and not self._rows.has_index:
            position, rest = after_files(rest, self._count, start)
        yield from episodes_of_parts(
            self._parts(rest, position),
            self.identity,
            self._limits,
            start=start,
            position=position,
            numbers=self._numbers,
            by_flags=not self._rows.rows_are_episodes,
        )

    def _parts(self, files: Iterable[DataFile], number: int) -> Iterator[Part]:
        for file in files:
            with self._open(file) as opened:
                self._rows.check(opened.schema, str(file.path))
                batches = opened.batches(self._rows.columns)
                for part in self._rows.parts(file, batches, number):
                    yield part
                    number += 1

    def _count(self, file: DataFile) -> int:
        """The number of the episodes, or of their parts, in a file."""
        with self._open(file) as opened:
            if self._rows.rows_are_episodes:
                return opened.num_rows
            batches = opened.batches(self._rows.end_columns)
            return self._rows.count(batches, str(file.path))

    def _open(self, file: DataFile) -> ArrowFile | ParquetFile:
        if file.path.suffix == ".arrow":
            return ArrowFile(self._pa, file.path, self._limits)
        opened = file.open and file.open()
        return ParquetFile(self._pa, file.path, self._limits, opened, file.damages)


def save(episodes: Iterable[Episode], path: str | pathlib.Path) -> int:
    """Writes a dataset of Hugging Face: Parquet files that `load_dataset(path)` reads.

    The directory is not there yet. Returns the number of episodes.

    Raises:
      InvalidArgumentError: If the path exists, if there are no episodes, or if a field has a dtype
        that the format lacks. Nothing is left then.
      FailedPreconditionError: If the library is not installed.
    """
    hugging_face = _datasets()
    pa = import_pyarrow()
    count = 0
    with new_directory(pathlib.Path(path)) as directory:
        data = directory / "data"
        data.mkdir()
        rows = EpisodeRows(pa, _FILE_BYTES, lambda part: data / f"train-{part:05}.parquet")
        rows.of_schema = lambda schema: hugging_face.Features.from_arrow_schema(schema).arrow_schema
        with rows:
            for episode in episodes:
                rows.add(episode)
                count += 1
        if not count:
            raise errors.InvalidArgumentError(f"hf:{path}: there are no episodes to write")
    return count
