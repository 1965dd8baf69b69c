# SPDX-License-Identifier: Apache-2.0
"""Format lerobot: reads datasets of LeRobot, version 3.0: Parquet files with a frame a row.

`observation.*`, `action`, `next.reward`, `next.terminated` and `next.truncated` are the parts of an
episode; where a dataset has `next.done` alone, it is a termination, and where it has no flag, the
last frame is truncated. Without `next.reward` rewards are 0. A frame has no observation after it:
the last one of an episode is in `final/*` of the episodes, where this package wrote the dataset,
and else that of the last frame is repeated.
"""

import json
import os
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_columns import read
from reverb.datasets.formats.fields import is_left_out, with_tuples
from reverb.datasets.formats.parquet import import_pyarrow
from reverb.datasets.formats.step_rows import split_steps
from reverb.datasets.library import library

__all__ = ["FINAL", "SHAPE", "VERSION", "LeRobotSource"]

VERSION = "v3.0"
# The columns of the episodes with the last observation, and the key of a feature with its own
# shape: LeRobot writes a scalar as `[1]`.
FINAL = "final/"
SHAPE = "reverb_shape"

_NUMBERS = ("timestamp", "frame_index", "episode_index", "index")
_BATCH_ROWS = 4096
_IMAGE_BATCH_ROWS = 64


class LeRobotSource:
    """A dataset of LeRobot on this machine; see `Source`.

    It is the path of its directory, or the id of a dataset in the directory of LeRobot.

    Raises:
      InvalidArgumentError: If it is not there, is of another version, or has videos.
      DataLossError: If its description is damaged.
      FailedPreconditionError: If pyarrow is not installed.
    """

    def __init__(self, name: str, dataset: str, leave_out: Collection[str] = ()) -> None:
        self.name = name
        self._pa = import_pyarrow()
        self._root = _root(name, dataset)
        self.identity = f"lerobot:{self._root.resolve()}"
        info = _info(self._root)
        version = info.get("codebase_version")
        if str(version).split(".")[0] != VERSION.split(".")[0]:
            raise errors.InvalidArgumentError(
                f"{self._root}: is of version {version} of LeRobot's format, and {VERSION} is "
                "read; `python -m lerobot.datasets.v30.convert_dataset_v21_to_v30` of LeRobot "
                "converts datasets of version v2.1"
            )
        self._features: dict[str, Any] = info["features"]
        self._fields = [it for it in self._features if it not in _NUMBERS]
        if info.get("total_tasks", 1) < 2 and "task_index" in self._fields:
            self._fields.remove("task_index")
        self._fields = [
            it for it in self._fields if _part(it)[0] != "infos" or not is_left_out(it, leave_out)
        ]
        for field in self._fields:
            if self._features[field]["dtype"] == "video":
                raise errors.InvalidArgumentError(
                    f"{self._root}: episode 0, field {field}: is a video, and images are read; "
                    "convert the dataset with LeRobot"
                )
        self.num_episodes: int | None = int(info["total_episodes"])

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this number on."""
        facts = self._facts()
        for number, arrays in enumerate(split_steps(self._columns(), "episode_index", ())):
            fact = next(facts, None)
            if fact is None:
                raise errors.DataLossError(
                    f"{self._root}/meta/episodes: episode {number} is missing, and data has it"
                )
            if len(arrays["episode_index"]) != fact["length"]:
                raise errors.DataLossError(
                    f"{self._root}: episode {number}, field frame_index: has "
                    f"{len(arrays['episode_index'])} frames, and meta/episodes says "
                    f"{fact['length']}"
                )
            if number >= start:
                yield self._episode(number, arrays, fact)
        if next(facts, None) is not None:
            raise errors.DataLossError(f"{self._root}/data: ends before the last episode")

    def _episode(self, number: int, arrays: dict[str, np.ndarray], fact: dict[str, Any]) -> Episode:
        num_steps = len(arrays["episode_index"])
        parts: dict[str, Any] = {"observations": {}, "actions": {}, "infos": {}}
        for field in self._fields:
            part, path = _part(field)
            values = arrays[field]
            if part == "observations":
                final = fact.get(f"{FINAL}{field}")
                last = values[-1:]
                if final is not None:
                    last = np.asarray(final, values.dtype).reshape(1, *values.shape[1:])
                values = np.concatenate([values, last])
            if part in ("observations", "actions", "infos"):
                _put(parts[part], path, values)
            else:
                parts[part] = values
        none = np.zeros(num_steps, np.bool_)
        last_step = np.arange(num_steps) == num_steps - 1
        if "truncated" not in parts and "terminated" not in parts:
            parts["truncated"] = none if "done" in parts else last_step
            parts["terminated"] = parts.get("done", none)
        return Episode(
            observations=_whole(parts["observations"], "state"),
            actions=_whole(parts["actions"], ""),
            rewards=parts.get("rewards", np.zeros(num_steps, np.float32)),
            terminated=parts.get("terminated", none),
            truncated=parts.get("truncated", none),
            infos=parts["infos"],
            metadata={} if fact.get("tasks") is None else {"tasks": tuple(fact["tasks"])},
            number=number,
            source=self.identity,
            place=str(self._root),
        )

    def _facts(self) -> Iterator[dict[str, Any]]:
        """The rows of `meta/episodes`, without statistics."""
        for path in sorted(self._root.glob("meta/episodes/*/*.parquet")):
            try:
                with self._pa.parquet.ParquetFile(path) as file:
                    names = [it for it in file.schema_arrow.names if not it.startswith("stats/")]
                    for batch in file.iter_batches(batch_size=256, columns=names):
                        yield from batch.to_pylist()
            except (self._pa.ArrowException, OSError) as error:
                raise errors.DataLossError(f"{path}: cannot be read: {error}") from None

    def _columns(self) -> Iterator[dict[str, np.ndarray]]:
        images = [it for it in self._fields if self._features[it]["dtype"] == "image"]
        numbers = [it for it in self._fields if it not in images] + ["episode_index"]
        for path in sorted(self._root.glob("data/*/*.parquet")):
            try:
                with self._pa.parquet.ParquetFile(path) as file:
                    schema = file.schema_arrow
                    for field in [*numbers, *images]:
                        if field not in schema.names:
                            raise errors.InvalidArgumentError(
                                f"{path}: episode 0, field {field}: is missing, and meta/info.json "
                                "has it"
                            )
                    fields = {it: schema.field(it) for it in numbers}
                    rows = _IMAGE_BATCH_ROWS if images else _BATCH_ROWS
                    for batch in file.iter_batches(batch_size=rows, columns=[*numbers, *images]):
                        found = read(self._pa, batch, fields, False, str(path))
                        columns = {it: self._shaped(it, found[it].values) for it in numbers}
                        for it in images:
                            columns[it] = _images(batch.column(batch.schema.get_field_index(it)))
                        yield columns
            except (self._pa.ArrowException, OSError) as error:
                raise errors.DataLossError(f"{path}: cannot be read: {error}") from None

    def _shaped(self, field: str, values: np.ndarray) -> np.ndarray:
        feature = self._features[field]
        shape = feature.get(SHAPE)
        if shape is None:
            scalar = _part(field)[0] not in ("observations", "actions")
            shape = [] if scalar and list(feature["shape"]) == [1] else feature["shape"]
        return values.reshape(len(values), *shape)


def _root(name: str, dataset: str) -> pathlib.Path:
    home = os.environ.get("HF_LEROBOT_HOME")
    if home is None:
        cache = os.environ.get("HF_HOME") or pathlib.Path.home() / ".cache" / "huggingface"
        home = str(pathlib.Path(cache) / "lerobot")
    given = pathlib.Path(dataset).expanduser()
    for root in (given, pathlib.Path(home) / dataset):
        if (root / "meta" / "info.json").is_file():
            return root
    raise errors.InvalidArgumentError(
        f"{name}: there is no dataset of LeRobot in {given}, nor in {pathlib.Path(home) / dataset} "
        "(meta/info.json). Nothing is downloaded here"
    )


def _info(root: pathlib.Path) -> dict[str, Any]:
    path = root / "meta" / "info.json"
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        _ = info["features"], info["total_episodes"]
    except (ValueError, KeyError, TypeError) as error:
        raise errors.DataLossError(f"{path}: is damaged ({error!r})") from None
    return info


def _part(field: str) -> tuple[str, tuple[str, ...]]:
    """The part of an episode that a feature is, and the path below it."""
    first, *rest = field.split(".")
    if first == "observation" and rest:
        return "observations", tuple(rest)
    if first == "action":
        return "actions", tuple(rest)
    known = {
        "next.reward": "rewards",
        "next.terminated": "terminated",
        "next.truncated": "truncated",
        "next.done": "done",
    }
    if field in known:
        return known[field], ()
    return "infos", tuple(field.removeprefix("infos.").split("."))


def _put(nest: dict[str, Any], path: tuple[str, ...], values: np.ndarray) -> None:
    for key in path[:-1]:
        nest = nest.setdefault(key, {})
    nest[path[-1] if path else ""] = values


def _whole(nest: dict[str, Any], only: str) -> Any:
    """A nest with one array of this name is the array."""
    if list(nest) == [only] and isinstance(nest[only], np.ndarray):
        return nest[only]
    return with_tuples(nest)


def _images(column: Any) -> np.ndarray:
    """Decodes images, `[R, height, width, 3]` uint8."""
    import io

    image = library("PIL", "pillow", "lerobot", "PIL.Image")
    return np.stack([np.asarray(image.open(io.BytesIO(it["bytes"]))) for it in column.to_pylist()])
