# SPDX-License-Identifier: Apache-2.0
"""Format rlds: datasets of RLDS, read and written by TensorFlow Datasets.

An episode has `T + 1` steps; the last has the last observation, and no action or reward of its own.
Our datasets have two more fields in a step, `truncated` and `infos`. In others an episode that ends
without `is_terminal` is truncated.
"""

import contextlib
import io
import itertools
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb._recording.nests import map_nest
from reverb.datasets.episode import Episode, leaves
from reverb.datasets.formats.fields import is_left_out, with_reset_rows, with_tuples, without
from reverb.datasets.formats.placing import new_directory
from reverb.datasets.library import library

__all__ = ["RldsSource", "save"]

_REQUIREMENT = "tensorflow-datasets>=4.9"

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
_AS_BYTES = (np.float64, np.uint64)
# Number of steps that TensorFlow stacks at a time.
_BATCH_STEPS = 256


def _tfds() -> Any:
    library("tensorflow", "tensorflow>=2.14", "rlds")
    return library("tensorflow_datasets", _REQUIREMENT, "rlds")


class RldsSource:
    """A dataset of RLDS that is on this machine; see `Source`.

    It is the path of a directory with `dataset_info.json`, or the id of a prepared dataset of
    TensorFlow Datasets. `leave_out` names other fields of steps, too.

    Raises:
      InvalidArgumentError: If it is not there, or is no dataset of RLDS.
      FailedPreconditionError: If TensorFlow Datasets is not installed.
    """

    def __init__(
        self,
        name: str,
        dataset: str,
        leave_out: Collection[str] = (),
        split: str | None = None,
    ) -> None:
        self.name = name
        self._leave_out = leave_out
        tfds = _tfds()
        path = pathlib.Path(dataset).expanduser()
        try:
            if path.is_dir():
                found = _version_directory(name, path)
                self._builder = tfds.builder_from_directory(found)
                where = str(path.resolve())
            else:
                self._builder, where = tfds.builder(dataset), dataset
            splits = list(self._builder.info.splits)
        except errors.ReverbError:
            raise
        except Exception as error:  # TensorFlow Datasets has no class of errors.
            raise errors.InvalidArgumentError(
                f"{name}: TensorFlow Datasets cannot open the dataset: "
                f"{error or type(error).__name__}"
            ) from None
        if not splits:
            raise errors.InvalidArgumentError(
                f"{name}: is not prepared on this machine, and nothing is downloaded here"
            )
        self._split = split or (splits[0] if len(splits) == 1 else "train")
        if self._split not in splits:
            raise errors.InvalidArgumentError(
                f"{name}: there is no split {self._split!r}; there are {splits}"
            )
        features = self._builder.info.features
        steps = getattr(features["steps"], "feature", None) if "steps" in features else None
        if steps is None or "is_last" not in steps:
            raise errors.InvalidArgumentError(
                f"{name}: episode 0, field steps: is missing, so this is no dataset of RLDS"
            )
        self._step_fields = set(steps.keys())
        self._check_fields(steps)
        self.identity = f"rlds:{where}#{self._split}"
        self.num_episodes: int | None = self._builder.info.splits[self._split].num_examples

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this number on."""
        tfds = _tfds()
        config = tfds.ReadConfig(
            interleave_cycle_length=1, num_parallel_calls_for_decode=1, try_autocache=False
        )
        data = self._builder.as_dataset(
            split=self._split, read_config=config, shuffle_files=False
        ).skip(start)
        found = iter(data)
        number = start
        while True:
            try:
                example = next(found)
                parts = [
                    tfds.as_numpy({it: batch[it] for it in self._wanted})
                    for batch in example["steps"].batch(_BATCH_STEPS)
                ]
            except StopIteration:
                return
            except Exception as error:  # As above.
                raise errors.DataLossError(
                    f"{self._builder.data_dir}: episode {number} cannot be read: "
                    f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
                ) from None
            if not parts:
                raise errors.InvalidArgumentError(
                    f"{self._builder.data_dir}: episode {number}, field steps: has no steps"
                )
            yield self._episode(number, _joined(parts))
            number += 1

    @property
    def _wanted(self) -> list[str]:
        return [
            it
            for it in sorted(self._step_fields)
            if it in _STEP_FIELDS or not is_left_out(it, self._leave_out)
        ]

    def _check_fields(self, steps: Any) -> None:
        for field in self._wanted:
            for path, feature in leaves(field, _nest(steps[field])):
                if feature.np_dtype is str or feature.np_dtype in (object, np.object_, bytes):
                    raise errors.InvalidArgumentError(
                        f"{self.name}: episode 0, field {path}: must be numbers, got text; "
                        f"leave_out=({field!r},) leaves it out"
                    )

    def _episode(self, number: int, arrays: dict[str, Any]) -> Episode:
        place = str(self._builder.data_dir)
        is_last = arrays["is_last"]
        num_steps = len(is_last) - 1
        if num_steps < 1 or not is_last[-1] or is_last[:-1].any():
            raise errors.InvalidArgumentError(
                f"{place}: episode {number}, field is_last: must be true in the last of at least "
                f"two steps, and only there; it is true in {np.flatnonzero(is_last).tolist()} of "
                f"{len(is_last)}"
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
            infos=without(infos, self._leave_out),
            number=number,
            source=self.identity,
            place=place,
        )


def save(episodes: Iterable[Episode], path: str | pathlib.Path, *, discount: float = 0.99) -> int:
    """Writes a dataset of RLDS, which `tfds.builder_from_directory(path)` reads.

    The directory is not there yet. Infos without a row for the reset get one of zeros, and all
    steps but terminal ones the discount. Returns the number of episodes.

    Raises:
      InvalidArgumentError: If the path exists, if there are no episodes, or if TensorFlow Datasets
        refuses them. Nothing is left then.
      FailedPreconditionError: If TensorFlow Datasets is not installed.
    """
    tfds = _tfds()
    given = iter(episodes)
    first = next(given, None)
    if first is None:
        raise errors.InvalidArgumentError(f"rlds:{path}: there are no episodes to write")
    count = 0

    def examples() -> Iterator[tuple[int, Any]]:
        nonlocal count
        for episode in itertools.chain([first], given):
            yield count, {"steps": _steps(episode, discount)}
            count += 1

    name = re.sub(r"\W", "_", pathlib.Path(path).name.lower()) or "episodes"
    steps = _steps(first, discount)
    features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(_feature(tfds, steps))})
    with new_directory(pathlib.Path(path)) as directory:
        try:
            builder = tfds.dataset_builders.AdhocBuilder(
                name=name,
                version="1.0.0",
                features=features,
                split_datasets={"train": examples()},
                data_dir=directory.parent / "tfds",
                description="Episodes of a table of reverb.",
                disable_shuffling=True,
            )
            # It prints that it downloads, which it does not, and draws a bar of its own.
            tfds.disable_progress_bar()
            with contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare()
        except errors.ReverbError:
            raise
        except ImportError as error:
            raise errors.FailedPreconditionError(
                f"rlds:{path}: TensorFlow Datasets lacks a package: {error}; pip install "
                f"'{_REQUIREMENT}' tensorflow importlib_resources"
            ) from None
        except Exception as error:  # As above.
            raise errors.InvalidArgumentError(
                f"rlds:{path}: episode {count}: TensorFlow Datasets cannot write it: "
                f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
            ) from error
        for file in pathlib.Path(builder.data_dir).iterdir():
            file.rename(directory / file.name)
    return count


def _steps(episode: Episode, discount: float) -> dict[str, Any]:
    """The `T + 1` steps of an episode."""
    num_steps = len(episode)
    index = np.arange(num_steps + 1)
    ends = np.append(np.zeros(num_steps, np.bool_), True)
    terminal = ends & bool(episode.terminated[-1])
    discounts = np.full(num_steps + 1, discount, np.float32)
    discounts[num_steps - 1 :] *= 0 if episode.terminated[-1] else 1
    steps = {
        "observation": _as_dicts(episode.observations),
        "action": _with_last_row(_as_dicts(episode.actions)),
        "reward": _with_last_row(episode.rewards),
        "discount": discounts,
        "is_first": index == 0,
        "is_last": ends,
        "is_terminal": terminal,
        "truncated": ends & bool(episode.truncated[-1]),
    }
    if episode.infos:
        steps["infos"] = with_reset_rows(_as_dicts(dict(episode.infos)), num_steps)
    return steps


def _feature(tfds: Any, nest: Any) -> Any:
    if isinstance(nest, Mapping):
        return tfds.features.FeaturesDict(
            {key: _feature(tfds, value) for key, value in nest.items()}
        )
    # Records have floats of 32 bits and signed integers of 64 bits; other values would change.
    encoding = "bytes" if nest.dtype in _AS_BYTES else "none"
    return tfds.features.Tensor(shape=nest.shape[1:], dtype=nest.dtype, encoding=encoding)


def _joined(parts: list[Any]) -> Any:
    """Joins the arrays of nests."""
    if isinstance(parts[0], Mapping):
        return {key: _joined([it[key] for it in parts]) for key in parts[0]}
    return np.concatenate(parts)


def _as_dicts(nest: Any) -> Any:
    """Replaces tuples by dicts with the keys "0", "1", ..., because RLDS has no tuples."""
    if isinstance(nest, Mapping):
        return {key: _as_dicts(value) for key, value in nest.items()}
    if isinstance(nest, tuple):
        return {str(i): _as_dicts(value) for i, value in enumerate(nest)}
    return nest


def _with_last_row(nest: Any) -> Any:
    """Adds a row of zeros for the last step, which has no action and no reward."""
    return map_nest(lambda leaf: np.concatenate([leaf, np.zeros_like(leaf[:1])]), nest)


def _nest(feature: Any) -> Any:
    """The features of a nest, as a nest of dicts."""
    if hasattr(feature, "items"):
        return {key: _nest(value) for key, value in feature.items()}
    return feature


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
