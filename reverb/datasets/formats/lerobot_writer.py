# SPDX-License-Identifier: Apache-2.0
"""Format lerobot: writes datasets of LeRobot, version 3.0."""

import io
import json
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.episode import Episode, leaves
from reverb.datasets.formats.episode_rows import check_dtype
from reverb.datasets.formats.lerobot import FINAL, SHAPE, VERSION
from reverb.datasets.formats.nested_lists import nested_rows
from reverb.datasets.formats.parquet_files import import_pyarrow
from reverb.datasets.formats.placing import new_directory
from reverb.datasets.library import library

__all__ = ["save"]

_TASK = "task"
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_CHUNK_FILES = 1000
_FILE_MIB = 100


def save(
    episodes: Iterable[Episode],
    path: str | pathlib.Path,
    *,
    fps: int,
    task: str = _TASK,
    robot_type: str | None = None,
) -> int:
    """Writes a dataset of LeRobot: a frame for each step, and the last observations beside them.

    The directory is not there yet. An image `[height, width, 3]` uint8 becomes a PNG. Returns the
    number of episodes.

    Raises:
      InvalidArgumentError: If the path exists, if there are no episodes, or if a field has a dtype
        or a shape that the format lacks. Nothing is left then.
      FailedPreconditionError: If pyarrow, or Pillow for images, is not installed.
    """
    if fps < 1:
        raise errors.InvalidArgumentError(f"fps must be at least 1, got {fps}")
    pa = import_pyarrow()
    with new_directory(pathlib.Path(path)) as root:
        writer = _Writer(pa, root, fps)
        with writer:
            for episode in episodes:
                writer.add(episode, task)
        if not writer.num_episodes:
            raise errors.InvalidArgumentError(f"lerobot:{path}: there are no episodes to write")
        writer.describe(task, robot_type)
    return writer.num_episodes


class _Writer:
    """The files of a dataset."""

    def __init__(self, pa: Any, root: pathlib.Path, fps: int) -> None:
        self._pa = pa
        self._root = root
        self._fps = fps
        self.num_episodes = 0
        self._num_frames = 0
        self._features: dict[str, dict[str, Any]] = {}
        self._file: Any = None
        self._num_files = 0
        self._file_bytes = 0
        self._facts: Any = None
        self._statistics: dict[str, _Statistics] = {}

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *exc: object) -> None:
        for file in (self._file, self._facts):
            if file is not None:
                file.close()

    def add(self, episode: Episode, task: str) -> None:
        frames = dict(_frames(episode))
        features = {name: _feature(episode, name, it) for name, it in frames.items()}
        if not self.num_episodes:
            self._features = features
            self._statistics = {name: _Statistics() for name in features}
        elif features != self._features:
            names = [
                it
                for it in {**features, **self._features}
                if features.get(it) != self._features.get(it)
            ]
            raise episode.fault(names[0], "has another dtype or shape than in the first episode")
        place = self._write_frames(episode, frames)
        self._write_facts(episode, task, place)
        for name, array in frames.items():
            self._statistics[name].add(array, self._features[name]["dtype"] == "image")
        self.num_episodes += 1
        self._num_frames += len(episode)

    def describe(self, task: str, robot_type: str | None) -> None:
        """Writes the files of `meta/` that are of the whole dataset."""
        numbers = {
            name: {"dtype": dtype, "shape": [1], "names": None}
            for name, dtype in (
                ("timestamp", "float32"),
                ("frame_index", "int64"),
                ("episode_index", "int64"),
                ("index", "int64"),
                ("task_index", "int64"),
            )
        }
        info = {
            "codebase_version": VERSION,
            "robot_type": robot_type,
            "total_episodes": self.num_episodes,
            "total_frames": self._num_frames,
            "total_tasks": 1,
            "chunks_size": _CHUNK_FILES,
            "data_files_size_in_mb": _FILE_MIB,
            "video_files_size_in_mb": 200,
            "fps": self._fps,
            "splits": {"train": f"0:{self.num_episodes}"},
            "data_path": f"data/{_FILE}",
            "video_path": None,
            "features": {**self._features, **numbers},
        }
        meta = self._root / "meta"
        (meta / "info.json").write_text(json.dumps(info, indent=4) + "\n", encoding="utf-8")
        statistics = {name: it.values() for name, it in self._statistics.items()}
        (meta / "stats.json").write_text(json.dumps(statistics, indent=4) + "\n", encoding="utf-8")
        self._pa.parquet.write_table(_tasks(self._pa, task), meta / "tasks.parquet")

    def _write_frames(self, episode: Episode, frames: dict[str, np.ndarray]) -> tuple[int, int]:
        """Writes the frames of an episode; returns the numbers of the chunk and of the file."""
        pa = self._pa
        num_steps = len(episode)
        index = np.arange(num_steps)
        arrays = {name: self._array(name, array) for name, array in frames.items()} | {
            "timestamp": pa.array((index / self._fps).astype(np.float32)),
            "frame_index": pa.array(index),
            "episode_index": pa.array(np.full(num_steps, self.num_episodes)),
            "index": pa.array(index + self._num_frames),
            "task_index": pa.array(np.zeros(num_steps, np.int64)),
        }
        batch = pa.record_batch(list(arrays.values()), names=list(arrays))
        if self._file is not None and self._file_bytes >= _FILE_MIB << 20:
            self._file.close()
            self._file = None
        if self._file is None:
            chunk, number = divmod(self._num_files, _CHUNK_FILES)
            path = self._root / "data" / _FILE.format(chunk_index=chunk, file_index=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.parquet.ParquetWriter(str(path), batch.schema)
            self._num_files += 1
            self._file_bytes = 0
        self._file.write_batch(batch)
        self._file_bytes += batch.nbytes
        return divmod(self._num_files - 1, _CHUNK_FILES)

    def _write_facts(self, episode: Episode, task: str, place: tuple[int, int]) -> None:
        """Writes the row of an episode in `meta/episodes`."""
        pa = self._pa
        fact: dict[str, Any] = {
            "episode_index": pa.array([self.num_episodes]),
            "tasks": pa.array([[task]]),
            "length": pa.array([len(episode)]),
            "data/chunk_index": pa.array([place[0]]),
            "data/file_index": pa.array([place[1]]),
            "dataset_from_index": pa.array([self._num_frames]),
            "dataset_to_index": pa.array([self._num_frames + len(episode)]),
            "meta/episodes/chunk_index": pa.array([0]),
            "meta/episodes/file_index": pa.array([0]),
        }
        for path, leaf in leaves("observations", episode.observations):
            final = pa.array(np.ascontiguousarray(leaf[-1:]).ravel())
            fact[f"{FINAL}{_name(path)}"] = pa.ListArray.from_arrays([0, len(final)], final)
        batch = pa.record_batch(list(fact.values()), names=list(fact))
        if self._facts is None:
            path = self._root / "meta" / "episodes" / _FILE.format(chunk_index=0, file_index=0)
            path.parent.mkdir(parents=True)
            self._facts = pa.parquet.ParquetWriter(str(path), batch.schema)
        self._facts.write_batch(batch)

    def _array(self, name: str, array: np.ndarray) -> object:
        pa = self._pa
        if self._features[name]["dtype"] == "image":
            rows = [{"bytes": _png(it), "path": None} for it in array]
            return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        return nested_rows(pa, array.ravel() if self._features[name]["shape"] == [1] else array)


class _Statistics:
    """Statistics of a feature that LeRobot normalizes by."""

    def __init__(self) -> None:
        self._count = 0
        self._min: Any = None

    def add(self, array: np.ndarray, is_image: bool) -> None:
        rows = array.astype(np.float64)
        if is_image:
            # Those of each channel, in [0, 1], `[3, 1, 1]`.
            rows = rows.reshape(-1, rows.shape[-1])[:, :, None, None] / 255
        elif rows.ndim == 1:
            rows = rows[:, None]
        sums, squares = rows.sum(axis=0), (rows * rows).sum(axis=0)
        low, high = rows.min(axis=0), rows.max(axis=0)
        if self._min is None:
            self._min, self._max, self._sum, self._squares = low, high, sums, squares
        else:
            self._min, self._max = np.minimum(self._min, low), np.maximum(self._max, high)
            self._sum, self._squares = self._sum + sums, self._squares + squares
        self._count += len(rows)

    def values(self) -> dict[str, Any]:
        mean = self._sum / self._count
        variance = np.maximum(self._squares / self._count - mean * mean, 0)
        return {
            "min": self._min.tolist(),
            "max": self._max.tolist(),
            "mean": mean.tolist(),
            "std": np.sqrt(variance).tolist(),
            "count": [self._count],
        }


def _frames(episode: Episode) -> Iterable[tuple[str, np.ndarray]]:
    """The features of the frames, `[T, ...]` each."""
    num_steps = len(episode)
    for path, leaf in leaves("observations", episode.observations):
        yield _name(path), leaf[:-1]
    for path, leaf in leaves("actions", episode.actions):
        yield _name(path), leaf
    yield "next.reward", episode.rewards
    yield "next.done", episode.terminated | episode.truncated
    yield "next.terminated", episode.terminated
    yield "next.truncated", episode.truncated
    for path, leaf in leaves("infos", episode.infos):
        yield _name(path), leaf[len(leaf) - num_steps :]


def _name(path: str) -> str:
    """The name of a feature for the path of a field: names of LeRobot have dots, and no slash."""
    first, *rest = path.split("/")
    if first == "observations":
        return ".".join(["observation", *(rest or ["state"])])
    return ".".join(["action" if first == "actions" else "infos", *rest])


def _feature(episode: Episode, name: str, array: np.ndarray) -> dict[str, Any]:
    check_dtype(episode, name, array)
    shape = list(array.shape[1:])
    if array.dtype == np.uint8 and len(shape) == 3 and shape[-1] == 3:
        names = ["height", "width", "channels"]
        return {"dtype": "image", "shape": shape, "names": names, SHAPE: shape}
    if len(shape) > 5 or 0 in shape:
        raise episode.fault(name, f"has rows of shape {shape}, which this format lacks")
    return {"dtype": array.dtype.name, "shape": shape or [1], "names": None, SHAPE: shape}


def _png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    module = library("PIL", "pillow", "lerobot", "PIL.Image")
    module.fromarray(image).save(file, "PNG")
    return file.getvalue()


def _tasks(pa: Any, task: str) -> object:
    """The table of tasks; the task is the index of a data frame of pandas."""
    index = "__index_level_0__"
    column = {"metadata": None, "pandas_type": "int64", "numpy_type": "int64"}
    text = {"metadata": None, "pandas_type": "unicode", "numpy_type": "object"}
    metadata = {
        "index_columns": [index],
        "column_indexes": [],
        "columns": [
            {"name": "task_index", "field_name": "task_index", **column},
            {"name": None, "field_name": index, **text},
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    table = pa.table({"task_index": pa.array([0], pa.int64()), index: pa.array([task])})
    return table.replace_schema_metadata({"pandas": json.dumps(metadata)})
