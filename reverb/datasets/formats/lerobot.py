# SPDX-License-Identifier: Apache-2.0
"""Format lerobot: reads datasets of LeRobot, version 3.0: Parquet files with a frame a row.

`observation.*`, `action`, `next.reward`, `next.terminated` and `next.truncated` are the parts of an
episode; where a dataset has `next.done` alone, it is a termination, and where it has no flag, the
last frame is truncated. Without `next.reward` rewards are 0. A frame has no observation after it:
the last one of an episode is in `final/*` of the episodes, where this package wrote the dataset,
and else that of the last frame is repeated.
"""

import collections
import os
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_columns import read
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.fields import put, with_tuples
from reverb.datasets.formats.files import object_of
from reverb.datasets.formats.images import decoded, decoded_all
from reverb.datasets.formats.limits import (
    BATCH_BYTES,
    MAX_DEPTH,
    MAX_FIELDS,
    MAX_ROWS,
    Limits,
)
from reverb.datasets.formats.links import hugging_face_home, inside, natural
from reverb.datasets.formats.parquet_files import ParquetFile, import_pyarrow
from reverb.datasets.formats.parts import index_of
from reverb.datasets.formats.step_rows import split_steps
from reverb.datasets.left_out import LeftOut, remedy

__all__ = ["FINAL", "SHAPE", "VERSION", "LeRobotSource"]

VERSION = "v3.0"
# The columns of the episodes with the last observation, and the key of a feature with its own
# shape: LeRobot writes a scalar as `[1]`.
FINAL = "final/"
SHAPE = "reverb_shape"

_NUMBERS = ("timestamp", "frame_index", "episode_index", "index")
_BATCH_ROWS = 4096
_DAMAGED = (ValueError, TypeError, OverflowError)


class LeRobotSource:
    """A dataset of LeRobot on this machine; see `Source`.

    It is the path of its directory, or the id of a dataset in the directory of LeRobot.

    Raises:
      InvalidArgumentError: If it is not there, is of another version, or has videos.
      DataLossError: If its description is damaged.
      FailedPreconditionError: If pyarrow is not installed.
    """

    def __init__(
        self,
        name: str,
        dataset: str,
        leave_out: LeftOut,
        limits: Limits,
    ) -> None:
        self.name = name
        self._limits = limits
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
        if info.get("total_tasks", 1) in (0, 1) and "task_index" in self._fields:
            self._fields.remove("task_index")
        # A state alone is the observation, unless other parts are only left out.
        whole = [it for it in self._fields if _part(it)[0] == "observations"]
        self._only = "state" if len(whole) == 1 else None
        # Names are also good as the dataset spells them, with dots.
        paths = {it: "/".join((part, *path)) for it in self._fields for part, path in [_part(it)]}
        self._fields = [
            it
            for it in self._fields
            if not (leave_out.has(paths[it]) or leave_out.has(f"infos/{it}"))
        ]
        leave_out.check_parts(name, paths.values())
        for part in ("observations", "actions"):
            parts = [it for it, path in paths.items() if path.partition("/")[0] == part]
            if parts and not set(parts) & set(self._fields):
                leave_out.refuse_all(name, part)
        for field in self._fields:
            if self._features[field]["dtype"] == "video":
                raise errors.InvalidArgumentError(
                    f"{self._root}: episode 0, field {field}: is a video, and images are read; "
                    f"convert the dataset with LeRobot{remedy(paths[field])}"
                )
        self.num_episodes: int | None = info["total_episodes"]
        _check_paths(self._root, self._fields)

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this number on."""
        facts = self._facts()
        steps = split_steps(self._columns(), "episode_index", (), self._limits, str(self._root))
        for number, arrays in enumerate(steps):
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
                    where = f"{self._root}/meta/episodes: episode {number}, field {FINAL}{field}"
                    with reading(where, (ValueError, TypeError, OverflowError)):
                        last = np.asarray(final, values.dtype).reshape(1, *values.shape[1:])
                values = np.concatenate([values, last])
            if part in ("observations", "actions", "infos"):
                put(parts[part], path or ("",), values)
            else:
                parts[part] = values
        none = np.zeros(num_steps, np.bool_)
        last_step = np.arange(num_steps) == num_steps - 1
        if "truncated" not in parts and "terminated" not in parts:
            parts["truncated"] = none if "done" in parts else last_step
            parts["terminated"] = parts.get("done", none)
        return Episode(
            observations=_whole(parts["observations"], self._only),
            actions=_whole(parts["actions"], ""),
            rewards=parts.get("rewards", np.zeros(num_steps, np.float32)),
            terminated=parts.get("terminated", none),
            truncated=parts.get("truncated", none),
            infos=parts["infos"],
            metadata={} if fact.get("tasks") is None else {"tasks": tuple(fact["tasks"])},
            number=number,
            key=str(index_of(arrays["episode_index"][0])),
            source=self.identity,
            place=str(self._root),
        )

    def _facts(self) -> Iterator[dict[str, Any]]:
        """The rows of `meta/episodes`, without statistics."""
        wanted = {"length", "tasks"} | {f"{FINAL}{it}" for it in self._fields}
        for path in self._files("meta/episodes/*/*.parquet"):
            with self._open(path) as file:
                names = [it for it in file.schema.names if it in wanted]
                for batch in file.batches(names, max_rows=256):
                    for row in range(batch.num_rows):
                        yield self._fact(path, batch, row)

    def _fact(self, path: pathlib.Path, batch: Any, row: int) -> dict[str, Any]:
        fact = {}
        for index, field in enumerate(batch.schema):
            value = batch.column(index)[row]
            is_list = self._pa.types.is_list(field.type)
            if not value.is_valid:
                continue
            if is_list != (field.name != "length"):
                raise errors.DataLossError(f"{path}: field {field.name}: is a {field.type}")
            is_final = field.name.startswith(FINAL)
            fact[field.name] = (
                value.values.to_numpy(zero_copy_only=False) if is_final else value.as_py()
            )
        if not isinstance(fact.get("length"), int):
            raise errors.DataLossError(f"{path}: an episode has no length")
        return fact

    def _columns(self) -> Iterator[dict[str, np.ndarray]]:
        images = [it for it in self._fields if self._features[it]["dtype"] == "image"]
        numbers = [it for it in self._fields if it not in images] + ["episode_index"]
        for path in self._files("data/*/*.parquet"):
            with self._open(path) as file:
                counts = collections.Counter(file.schema.names)
                for field in [*numbers, *images]:
                    if counts[field] != 1:
                        raise errors.InvalidArgumentError(
                            f"{path}: episode 0, field {field}: is missing, and meta/info.json "
                            "has it"
                        )
                fields = {it: file.schema.field(it) for it in numbers}
                row = 0
                for batch in file.batches([*numbers, *images], max_rows=_BATCH_ROWS):
                    found = read(self._pa, batch, fields, False, f"{path}: rows from {row} on")
                    row += batch.num_rows
                    columns = {it: self._shaped(path, it, found[it].values) for it in numbers}
                    pictures = {it: _pictures(path, batch, it) for it in images}
                    yield from _with_images(path, columns, pictures)

    def _shaped(self, path: pathlib.Path, field: str, values: np.ndarray) -> np.ndarray:
        if field == "episode_index":
            return values
        feature = self._features[field]
        shape = feature.get(SHAPE)
        with reading(f"{path}: field {field}, whose shape is in meta/info.json", _DAMAGED):
            if shape is None:
                scalar = _part(field)[0] not in ("observations", "actions")
                shape = [] if scalar and list(feature["shape"]) == [1] else feature["shape"]
            return values.reshape(len(values), *shape)

    def _open(self, path: pathlib.Path) -> ParquetFile:
        return ParquetFile(self._pa, path, self._limits, problem="cannot be read")

    def _files(self, pattern: str) -> Iterator[pathlib.Path]:
        for path in sorted(self._root.glob(pattern), key=lambda it: natural(it.as_posix())):
            inside(self._root, path, _home())
            yield path


def _home() -> pathlib.Path:
    home = os.environ.get("HF_LEROBOT_HOME")
    return pathlib.Path(home) if home is not None else hugging_face_home() / "lerobot"


def _root(name: str, dataset: str) -> pathlib.Path:
    home = _home()
    given = pathlib.Path(dataset).expanduser()
    for root in (given, home / dataset):
        if (root / "meta" / "info.json").exists():
            return root
    raise errors.InvalidArgumentError(
        f"{name}: there is no dataset of LeRobot in {given}, nor in {home / dataset} "
        "(meta/info.json). Nothing is downloaded here"
    )


def _info(root: pathlib.Path) -> dict[str, Any]:
    path = root / "meta" / "info.json"
    inside(root, path, _home())
    info = object_of(path)
    features, total = info.get("features"), info.get("total_episodes")
    if not isinstance(features, dict) or type(total) is not int or total < 0:
        raise errors.DataLossError(f"{path}: is damaged: it has no features, or no total_episodes")
    for field, feature in features.items():
        if not isinstance(feature, dict) or not {"dtype", "shape"} <= feature.keys():
            raise errors.DataLossError(f"{path}: feature {field} is damaged")
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


def _whole(nest: dict[str, Any], only: str | None) -> Any:
    """A nest with one array of this name is the array; `None`: it is a nest."""
    if only is not None and list(nest) == [only] and isinstance(nest[only], np.ndarray):
        return nest[only]
    return with_tuples(nest)


def _check_paths(root: pathlib.Path, fields: Collection[str]) -> None:
    """Checks that no field is in another, or in too many nests."""
    paths = {(part, *path): field for field in fields for part, path in [_part(field)]}
    if len(paths) != len(fields) or len(fields) > MAX_FIELDS:
        raise errors.InvalidArgumentError(
            f"{root}/meta/info.json: two features are one, or there are more than {MAX_FIELDS}"
        )
    for path, field in paths.items():
        if len(path) > MAX_DEPTH or any(path[:it] in paths for it in range(1, len(path))):
            raise errors.InvalidArgumentError(
                f"{root}/meta/info.json: feature {field[:80]} is in another one, or in too many "
                "nests"
            )


def _pictures(path: pathlib.Path, batch: Any, field: str) -> list[Any]:
    """The bytes of the images of a batch."""
    rows = batch.column(batch.schema.get_field_index(field)).to_pylist()
    return [it.get("bytes") if isinstance(it, dict) else it for it in rows]


def _with_images(
    path: pathlib.Path, columns: dict[str, np.ndarray], pictures: dict[str, list[Any]]
) -> Iterator[dict[str, np.ndarray]]:
    """The columns with decoded images, in parts of few rows."""
    num_rows = len(next(iter(columns.values())))
    if not pictures or not num_rows:
        yield columns
        return
    # All images of a field have the size of its first one.
    row_bytes = sum(
        decoded(rows[0], f"{path}: field {field}", "lerobot").nbytes
        for field, rows in pictures.items()
    )
    step = max(1, min(MAX_ROWS, BATCH_BYTES // max(row_bytes, 1)))
    for start in range(0, num_rows, step):
        part = {field: it[start : start + step] for field, it in columns.items()}
        for field, rows in pictures.items():
            where = f"{path}: field {field}"
            part[field] = decoded_all(rows[start : start + step], where, "lerobot")
        yield part
