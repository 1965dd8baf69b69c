# SPDX-License-Identifier: Apache-2.0
"""Format hf: datasets of Hugging Face, an episode a row; its library reads a step a row, too."""

import pathlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_rows import Rows
from reverb.datasets.formats.episode_rows import EpisodeRows
from reverb.datasets.formats.parquet import import_pyarrow
from reverb.datasets.formats.placing import new_directory
from reverb.datasets.library import library

__all__ = ["HuggingFaceSource", "save"]

_REQUIREMENT = "datasets>=3"

# Limits of a batch that is decoded at a time.
_BATCH_BYTES = 16 << 20
_MAX_BATCH_ROWS = 16_384

# Size of the data in a file of a dataset that is written.
_FILE_BYTES = 256 << 20


def _datasets() -> Any:
    return library("datasets", _REQUIREMENT, "hf")


class HuggingFaceSource:
    """A dataset that the library `datasets` can load; see `Source`.

    It is an id, or the path of a directory of `save_to_disk` or of files.

    Raises:
      InvalidArgumentError: If there is no such dataset or split, or if a field is missing.
      FailedPreconditionError: If the library is not installed.
    """

    def __init__(
        self,
        name: str,
        dataset: str,
        leave_out: Collection[str] = (),
        split: str | None = None,
    ) -> None:
        self.name = name
        self._pa = import_pyarrow()
        path = pathlib.Path(dataset).expanduser()
        where = str(path.resolve()) if path.exists() else dataset
        try:
            self._data, split = _loaded(_datasets(), where, path, split)
            first = next(iter(self._data.with_format("arrow").iter(batch_size=1)), None)
        except errors.ReverbError as error:
            raise type(error)(f"{name}: {error}") from None
        except Exception as error:  # The library raises errors of many others.
            raise errors.InvalidArgumentError(
                f"{name}: Hugging Face cannot open the dataset: {error or type(error).__name__}"
            ) from None
        self.identity = f"hf:{where}#{split}"
        self.num_episodes: int | None = None
        self._rows: Rows | None = None
        if first is None:
            self.num_episodes = 0
            return
        self._rows = Rows(self._pa, first.schema, name, self.identity, leave_out)
        self._batch_rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // max(first.nbytes, 1)))
        if self._rows.rows_are_episodes:
            splits = getattr(self._data.info, "splits", None) or {}
            known = splits[split].num_examples if split in splits else None
            self.num_episodes = getattr(self._data, "num_rows", known) or None

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this number on."""
        if self._rows is None:
            return
        data, number = self._data, 0
        if self._rows.rows_are_episodes and start:
            data, number = data.skip(start), start
        for episode in self._rows.episodes(self._batches(data), number):
            if episode.number >= start:
                yield episode

    def _batches(self, data: Any) -> Iterator[Any]:
        try:
            for table in data.with_format("arrow").iter(batch_size=self._batch_rows):
                yield from table.combine_chunks().to_batches()
        except Exception as error:  # As above.
            raise errors.DataLossError(
                f"{self.name}: cannot be read: {error or type(error).__name__}"
            ) from None


def _loaded(library_: Any, where: str, path: pathlib.Path, split: str | None) -> tuple[Any, str]:
    """Loads a dataset, without a copy of it in the cache of the library."""
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        found = library_.load_from_disk(where)
        if isinstance(found, library_.Dataset):
            own = str(found.split or "train")
            if split not in (None, own):
                raise errors.InvalidArgumentError(f"there is no split {split!r}, only {own!r}")
            return found, own
    else:
        found = library_.load_dataset(where, streaming=True)
    names = list(found)
    chosen = split or (names[0] if len(names) == 1 else "train")
    if chosen not in names:
        raise errors.InvalidArgumentError(f"there is no split {chosen!r}; there are {names}")
    return found[chosen], chosen


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
