# SPDX-License-Identifier: Apache-2.0
"""Format minari: reads datasets of Minari, files of HDF5, of Arrow or of Parquet.

Minari itself makes the environment of a dataset that has no spaces, and so runs what its metadata
names. Here the files are read by their layout, and the metadata is text.
"""

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from reverb import errors
from reverb.datasets.episode import Episode, leaves
from reverb.datasets.formats.files import object_of
from reverb.datasets.formats.limits import Limits
from reverb.datasets.formats.links import inside
from reverb.datasets.formats.minari_spaces import Space, space_of
from reverb.datasets.left_out import LeftOut
from reverb.datasets.library import library

if TYPE_CHECKING:
    from reverb.datasets.formats.minari_arrow import ArrowStorage
    from reverb.datasets.formats.minari_hdf5 import Hdf5Storage

__all__ = ["REQUIREMENT", "MinariSource", "import_minari"]

REQUIREMENT = "minari[arrow,hdf5]>=0.5"


def import_minari() -> Any:
    """Imports Minari.

    Raises:
      FailedPreconditionError: If it is not installed.
    """
    return library("minari", REQUIREMENT, "minari")


class MinariSource:
    """A dataset of Minari on this machine, by its id or the path of its directory; see `Source`.

    Raises:
      InvalidArgumentError: If it is not there, is of a version that this Minari cannot read, or has
        no spaces.
      DataLossError: If its metadata is damaged.
      FailedPreconditionError: If Minari is not installed.
    """

    def __init__(
        self,
        name: str,
        dataset: str,
        leave_out: LeftOut,
        limits: Limits,
    ) -> None:
        self.name = name
        self._leave_out = leave_out
        self._limits = limits
        minari = import_minari()
        self._root, self._data = _directory(name, dataset)
        metadata = self._data / "metadata.json"
        inside(self._root, metadata, _home())
        facts = object_of(metadata)
        self._spaces = _spaces(metadata, facts)
        version = facts.get("minari_version")
        if version not in tuple(minari.supported_dataset_versions):
            raise errors.InvalidArgumentError(
                f"{name}: Minari cannot open the dataset: the installed Minari "
                f"{minari.__version__} does not support the dataset of Minari {version}"
            )
        total, identity = facts.get("total_episodes"), facts.get("dataset_id")
        if type(total) is not int or total < 0 or not isinstance(identity, str):
            raise errors.DataLossError(
                f"{metadata}: is damaged: total_episodes is {total!r:.80} and dataset_id "
                f"{identity!r:.80}"
            )
        self._format = facts.get("data_format")
        if self._format not in ("hdf5", "arrow", "parquet"):
            raise errors.InvalidArgumentError(
                f"{metadata}: data_format is {self._format!r:.80}; hdf5, arrow and parquet are read"
            )
        self.identity = f"minari:{identity}"
        self.num_episodes: int | None = total

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this position on. Their numbers are Minari's own."""
        total = self.num_episodes or 0
        if start >= total:
            return
        with self._open() as storage:
            numbers = sorted(storage.numbers())[:total]
            if len(numbers) < total:
                numbers = range(total)  # The first that is missing is an error.
            for number in numbers[start:]:
                fields, facts = storage.read(number)
                if number == numbers[start]:
                    names = ("observations", "actions", "infos")
                    paths = [path for it in names for path, _ in leaves(it, fields[it])]
                    self._leave_out.check_parts(self.name, paths)
                yield Episode(
                    observations=fields["observations"],
                    actions=fields["actions"],
                    rewards=fields["rewards"],
                    terminated=fields["terminations"],
                    truncated=fields["truncations"],
                    infos=fields["infos"],
                    metadata=facts,
                    number=number,
                    source=self.identity,
                    place=str(self._data),
                )

    def _open(self) -> "ArrowStorage | Hdf5Storage":
        if self._format == "hdf5":
            from reverb.datasets.formats.minari_hdf5 import Hdf5Storage

            path = self._data / "main_data.hdf5"
            inside(self._root, path, _home())
            return Hdf5Storage(path, self._spaces, self._leave_out, self._limits)
        from reverb.datasets.formats.minari_arrow import ArrowStorage

        def check(path: pathlib.Path) -> None:
            inside(self._root, path, _home())

        suffix = f".{self._format}"
        leave_out = self._leave_out
        return ArrowStorage(self._data, suffix, self._spaces, leave_out, check, self._limits)


def _home() -> pathlib.Path:
    """The directory of Minari's datasets."""
    given = os.environ.get("MINARI_DATASETS_PATH")
    return pathlib.Path(given) if given else pathlib.Path.home() / ".minari" / "datasets"


def _directory(name: str, dataset: str) -> tuple[pathlib.Path, pathlib.Path]:
    """The directory of a dataset, and the one with its data."""
    for root in (pathlib.Path(dataset).expanduser(), _home() / dataset):
        data = root / "data" if (root / "data").is_dir() else root
        if (data / "metadata.json").exists():
            return root, data
    raise errors.InvalidArgumentError(
        f"{name}: there is no dataset of Minari in {dataset}, nor in {_home() / dataset} "
        f"(data/metadata.json). Nothing is downloaded here: `minari download {dataset}` does it"
    )


def _spaces(metadata: pathlib.Path, facts: Mapping[str, Any]) -> dict[str, Space]:
    """The spaces of observations and actions.

    Raises:
      InvalidArgumentError: If there are none. Minari would make the environment for them.
    """
    spaces = {}
    for field in ("observation", "action"):
        given = facts.get(f"{field}_space")
        if given is None:
            raise errors.InvalidArgumentError(
                f"{metadata}: has no {field}_space, and no environment is made to find it, because "
                "that runs programs that the dataset names. If you trust it, add "
                "observation_space and action_space, which "
                "`minari.serialization.serialize_space(env.observation_space)` makes"
            )
        encoded = bool(facts.get("jpeg_encoding", True))
        spaces[f"{field}s"] = space_of(given, f"{metadata}: {field}_space", encoded)
    return spaces
