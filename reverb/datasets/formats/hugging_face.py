# SPDX-License-Identifier: Apache-2.0
"""Format hf: datasets of Hugging Face, with an episode or a step a row.

A directory is read by the names of its files, Parquet or Arrow: what its README or its JSON says of
other files, of addresses or of programs is not followed. A dataset of the hub is read in the same
way, from the hub or from what the library has in its cache.
"""

import pathlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_files import ArrowFile
from reverb.datasets.formats.arrow_rows import Rows
from reverb.datasets.formats.episode_rows import EpisodeRows
from reverb.datasets.formats.hugging_face_files import DataFile, split_of
from reverb.datasets.formats.limits import DEFAULT_LIMITS, Limits
from reverb.datasets.formats.parquet_files import ParquetFile, import_pyarrow
from reverb.datasets.formats.placing import new_directory
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
        leave_out: Collection[str] = (),
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
            place, schema = name, first.schema
        self._rows = Rows(self._pa, schema, place, self.identity, leave_out, limits)
        self.num_episodes: int | None = None
        if self._rows.rows_are_episodes:
            self.num_episodes = sum(map(self._num_rows, self._files))

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this number on."""
        number = 0
        rest = list(self._files)
        if self._rows.rows_are_episodes:  # Whole files before the first episode are not read.
            while rest and number + (num_rows := self._num_rows(rest[0])) <= start:
                number += num_rows
                del rest[0]
        for episode in self._rows.episodes(self._batches(rest), number):
            if episode.number >= start:
                yield episode

    def _batches(self, files: Iterable[DataFile]) -> Iterator[Any]:
        for file in files:
            with self._open(file) as opened:
                self._rows.check(opened.schema, str(file.path))
                yield from opened.batches(self._rows.columns)

    def _num_rows(self, file: DataFile) -> int:
        with self._open(file) as opened:
            return opened.num_rows

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
