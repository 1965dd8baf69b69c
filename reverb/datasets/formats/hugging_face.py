# SPDX-License-Identifier: Apache-2.0
"""Format hf: datasets of Hugging Face, with an episode or a step a row.

A directory is read by the names of its files, Parquet or Arrow: what its README or its JSON says of
other files, of addresses or of programs is not followed. A dataset of the hub is read in the same
way, from the hub or from what the library has in its cache.
"""

import functools
import pathlib
from collections.abc import Iterable

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.episode_rows import EpisodeRows
from reverb.datasets.formats.hugging_face_files import split_of
from reverb.datasets.formats.limits import Limits
from reverb.datasets.formats.parquet_files import import_pyarrow
from reverb.datasets.formats.placing import new_directory
from reverb.datasets.formats.row_files import RowFiles
from reverb.datasets.left_out import LeftOut
from reverb.datasets.library import library

__all__ = ["HuggingFaceSource", "save"]

# Size of the data in a file of a dataset that is written.
_FILE_BYTES = 256 << 20
_datasets = functools.partial(library, "datasets", "datasets>=3", "hf")


class HuggingFaceSource(RowFiles):
    """A dataset of Hugging Face; see `Source`.

    It is an id, or the path of a directory of `save_to_disk` or of files.
    """

    _by_flags = True

    def __init__(
        self,
        name: str,
        dataset: str,
        leave_out: LeftOut,
        split: str | None,
        limits: Limits,
    ) -> None:
        path = pathlib.Path(dataset).expanduser()
        where = str(path.resolve()) if path.exists() else dataset
        files, split = split_of(name, path, dataset, split, _datasets)
        identity = f"hf:{where}#{split}"
        super().__init__(name, identity, files, leave_out, limits)


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
