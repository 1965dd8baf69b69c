# SPDX-License-Identifier: Apache-2.0
"""Format rlds: reads datasets of RLDS, records of TensorFlow in a directory.

An episode has `T + 1` steps; the last has the last observation, and no action or reward of its own.
Our datasets have two more fields in a step, `truncated` and `infos`. In others an episode that ends
without `is_terminal` is truncated.

TensorFlow Datasets imports the Python classes that a dataset names. Here the files are read by
their layout, and the names of classes are compared with those that are known.
"""

import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb._recording.nests import map_nest
from reverb.datasets.episode import Episode, leaves
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.fields import with_tuples
from reverb.datasets.formats.files import object_of
from reverb.datasets.formats.limits import Limits
from reverb.datasets.formats.links import inside
from reverb.datasets.formats.rlds_features import Feature, steps_of
from reverb.datasets.formats.rlds_records import Example, records
from reverb.datasets.left_out import LeftOut, remedy
from reverb.datasets.library import library

__all__ = ["REQUIREMENT", "RldsSource", "import_tfds"]

REQUIREMENT = "tensorflow-datasets>=4.9"

_STEP_FIELDS = {
    "observation",
    "action",
    "reward",
    "discount",
    "is_first",
    "is_last",
    "is_terminal",
    "truncated",
    "infos",
}
# The fields of an episode that are nests in a step.
_FIELDS = {"observation": "observations", "action": "actions", "infos": "infos"}
_NUMBERS = ("reward", "discount", "is_first", "is_last", "is_terminal", "truncated")
_NEEDED = ("observation", "action", "reward", "is_last")
_DAMAGED = (KeyError, ValueError, TypeError, AttributeError, OverflowError, IndexError)
_ID = re.compile(r"\w+(?:/[\w.-]+)?(?::[0-9.]+)?")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_FILE_NAME = re.compile(r"[\w.-]{1,255}")
_MAX_SHARDS = 100_000


def import_tfds() -> Any:
    """Imports TensorFlow Datasets, which needs TensorFlow.

    Raises:
      FailedPreconditionError: If one of them is not installed.
    """
    library("tensorflow", "tensorflow>=2.14", "rlds")
    return library("tensorflow_datasets", REQUIREMENT, "rlds")


class RldsSource:
    """A dataset of RLDS that is on this machine; see `Source`.

    It is the path of a directory with `dataset_info.json`, or the id of a prepared dataset of
    TensorFlow Datasets. Other fields of steps are infos.

    Raises:
      InvalidArgumentError: If it is not there, or is no dataset of RLDS.
      DataLossError: If its description is damaged.
    """

    def __init__(
        self,
        name: str,
        dataset: str,
        leave_out: LeftOut,
        split: str | None,
        limits: Limits,
    ) -> None:
        self.name = name
        self._leave_out = leave_out
        self._limits = limits
        path = pathlib.Path(dataset).expanduser()
        root = path if path.is_dir() else _prepared(name, path, dataset)
        where = str(path.resolve()) if path.is_dir() else dataset
        self._directory = _version_directory(name, root)
        self._shards, chosen = self._files_of(split)
        features = self._directory / "features.json"
        self._check(features)
        steps = steps_of(features, object_of(features))
        if steps is None or not {"is_last"} <= steps.keys():
            raise errors.InvalidArgumentError(
                f"{name}: episode 0, field steps: is missing, so this is not a dataset of RLDS"
            )
        self._features = self._wanted(steps)
        self.identity = f"rlds:{where}#{chosen}"
        self.num_episodes: int | None = sum(count for _, count in self._shards)

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this number on."""
        number = 0
        for path, count in self._shards:
            if number + count <= start:
                number += count
                continue
            found = number
            place = str(self._directory)
            for data in records(path, place, number, self._limits):
                if found >= start:
                    yield self._episode(found, data)
                found += 1
            number += count

    def _episode(self, number: int, data: bytes) -> Episode:
        where = f"{self._directory}: episode {number}"
        with reading(where, _DAMAGED):
            example = Example(data, where, self._limits)
            is_last = self._features["is_last"].read(example, f"{where}, field is_last", None)
            num_rows = len(is_last)
            self._limits.check_length(where, num_rows - 1)
            arrays = _read(self._features, example, f"{where}, field ", num_rows)
        return self._made(number, arrays, is_last)

    def _made(self, number: int, arrays: dict[str, Any], is_last: np.ndarray) -> Episode:
        place = str(self._directory)
        num_steps = len(is_last) - 1
        if num_steps < 1 or not is_last[-1] or is_last[:-1].any():
            raise errors.InvalidArgumentError(
                f"{place}: episode {number}, field is_last: must be true in the last of at least "
                f"two steps, and only there; it is true in "
                f"{np.flatnonzero(is_last)[:10].tolist()} of {len(is_last)}"
            )
        last = np.arange(num_steps) == num_steps - 1
        terminal = bool(arrays.get("is_terminal", is_last)[-1])
        truncated = last & (
            bool(arrays["truncated"][-1]) if "truncated" in arrays else not terminal
        )
        infos = dict(arrays.get("infos", {}))
        infos |= {name: it for name, it in arrays.items() if name not in _STEP_FIELDS}
        return Episode(
            observations=with_tuples(arrays["observation"]),
            actions=map_nest(lambda leaf: leaf[:num_steps], with_tuples(arrays["action"])),
            rewards=arrays["reward"][:num_steps],
            terminated=last & terminal,
            truncated=truncated,
            infos=infos,
            number=number,
            source=self.identity,
            place=place,
        )

    def _wanted(self, steps: Mapping[str, Any]) -> dict[str, Any]:
        """The features of the steps that are read."""
        for field in _NEEDED:
            if field not in steps:
                raise errors.InvalidArgumentError(
                    f"{self.name}: episode 0, field {field}: is missing; a step has {sorted(steps)}"
                )
        found = {}
        for field, feature in steps.items():
            if field in _STEP_FIELDS:
                found[field] = self._leave_out.without(_FIELDS.get(field, field), feature)
            elif not self._leave_out.has(f"infos/{field}"):
                found[field] = self._leave_out.without(f"infos/{field}", feature)
        paths = [
            path
            for field, nest in found.items()
            if field not in _NUMBERS
            for path, _ in leaves(_FIELDS.get(field, f"infos/{field}"), nest)
        ]
        self._leave_out.check_parts(self.name, paths)
        for field, nest in found.items():
            is_number = isinstance(nest, Feature) and nest.is_number
            if field in _NUMBERS and not is_number:
                raise errors.InvalidArgumentError(
                    f"{self.name}: episode 0, field {field}: must be one number"
                )
            if field == "infos" and isinstance(nest, Feature):
                raise errors.InvalidArgumentError(f"{self.name}: field infos: must be a nest")
            for path, feature in leaves(field, nest):
                if feature.dtype is None:
                    full = path if field in _STEP_FIELDS else f"infos/{path}"
                    raise errors.InvalidArgumentError(
                        f"{self.name}: episode 0, field {path}: must be numbers, got "
                        f"{feature.kind}{remedy(full)}"
                    )
        return found

    def _files_of(self, split: str | None) -> tuple[list[tuple[pathlib.Path, int]], str]:
        """The files of a split with the numbers of their episodes, and its name."""
        path = self._directory / "dataset_info.json"
        self._check(path)
        facts = object_of(path)
        with reading(str(path), _DAMAGED, "is damaged"):
            form = facts.get("fileFormat", "tfrecord")
            if form != "tfrecord":
                raise errors.InvalidArgumentError(
                    f"{path}: fileFormat is {form!r:.80}, not tfrecord"
                )
            splits = {it["name"]: it for it in facts.get("splits", ())}
            if not splits:
                raise errors.InvalidArgumentError(
                    f"{self.name}: is not prepared on this machine, and nothing is downloaded here"
                )
            chosen = split or (next(iter(splits)) if len(splits) == 1 else "train")
            if chosen not in splits:
                raise errors.InvalidArgumentError(
                    f"{self.name}: there is no split {chosen!r}; there are {list(splits)}"
                )
            counts = [int(it) for it in splits[chosen].get("shardLengths", ())]
            if len(counts) > _MAX_SHARDS or any(it < 0 for it in counts):
                raise ValueError(f"it has more than {_MAX_SHARDS} files, or negative lengths")
            template = splits[chosen].get("filepathTemplate") or _TEMPLATE
            values = {"DATASET": facts["name"], "SPLIT": chosen, "FILEFORMAT": form}
            files = [
                (self._shard(template, values, index, len(counts)), count)
                for index, count in enumerate(counts)
            ]
        return files, chosen

    def _shard(self, template: str, values: dict[str, str], index: int, count: int) -> pathlib.Path:
        """The path of a file, which is a name in the directory."""
        number = {"SHARD_INDEX": f"{index:05}", "NUM_SHARDS": f"{count:05}"}
        all_values = values | number | {"SHARD_X_OF_Y": f"{index:05}-of-{count:05}"}
        name = re.sub(r"\{(\w+)\}", lambda it: all_values[it[1]], template)
        if not _FILE_NAME.fullmatch(name) or name in (".", ".."):
            raise errors.InvalidArgumentError(
                f"{self._directory / 'dataset_info.json'}: filepathTemplate makes {name!r:.200}, "
                "which is not the name of a file in the directory"
            )
        path = self._directory / name
        self._check(path)
        return path

    def _check(self, path: pathlib.Path) -> None:
        inside(self._directory, path, _home())


def _read(features: Mapping[str, Any], example: Example, where: str, num_rows: int) -> Any:
    """The values of features, in their nests."""
    found = {}
    for name, feature in features.items():
        place = f"{where}{name}"
        found[name] = (
            feature.read(example, place, num_rows)
            if isinstance(feature, Feature)
            else _read(feature, example, f"{place}/", num_rows)
        )
    return found


def _home() -> pathlib.Path:
    """The directory of the prepared datasets of TensorFlow Datasets."""
    given = os.environ.get("TFDS_DATA_DIR")
    return (
        pathlib.Path(given).expanduser() if given else pathlib.Path.home() / "tensorflow_datasets"
    )


def _prepared(name: str, path: pathlib.Path, dataset: str) -> pathlib.Path:
    """The directory of a prepared dataset by its id, such as `name/config:1.0.0`."""
    if _ID.fullmatch(dataset):
        root = _home() / dataset.replace(":", "/")
        if root.is_dir():
            return root
    raise errors.InvalidArgumentError(
        f"{name}: there is no directory {path}, nor {dataset} in {_home()} (TFDS_DATA_DIR), so "
        "TensorFlow Datasets cannot open it, either. Nothing is downloaded here"
    )


def _version_directory(name: str, path: pathlib.Path) -> pathlib.Path:
    """The directory with the files: the path itself, or its only version below it."""
    if (path / "dataset_info.json").is_file():
        return path
    found = sorted(it.parent for it in path.glob("**/dataset_info.json"))
    if len(found) != 1:
        raise errors.InvalidArgumentError(
            f"{name}: {len(found)} directories below {path} have a dataset_info.json, so one must "
            f"be given{': ' if found else ''}{', '.join(map(str, found[:5]))}"
        )
    return found[0]
