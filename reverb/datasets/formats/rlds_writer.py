# SPDX-License-Identifier: Apache-2.0
"""Writes datasets of RLDS, by TensorFlow Datasets.

Our datasets have two more fields in a step, `truncated` and `infos`.
"""

import contextlib
import io
import itertools
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb._recording.checks import check_discount
from reverb._recording.nests import map_nest
from reverb.datasets.episode import Episode
from reverb.datasets.formats.fields import with_reset_rows
from reverb.datasets.formats.placing import new_directory
from reverb.datasets.formats.rlds import REQUIREMENT, import_tfds

__all__ = ["save"]

_AS_BYTES = (np.float64, np.uint64)


def save(episodes: Iterable[Episode], path: str | pathlib.Path, *, discount: float = 0.99) -> int:
    """Writes a dataset of RLDS, which `tfds.builder_from_directory(path)` reads.

    The directory is not there yet. Infos without a row for the reset get one of zeros, and all
    steps but terminal ones the discount. Returns the number of episodes.

    Raises:
      InvalidArgumentError: If the path exists, if the discount is not in [0, 1], if there are no
        episodes, or if TensorFlow Datasets refuses them. Nothing is left then.
      FailedPreconditionError: If TensorFlow Datasets is not installed.
    """
    check_discount(discount)
    tfds = import_tfds()
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
                f"'{REQUIREMENT}' tensorflow importlib_resources"
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


def _as_dicts(nest: object) -> object:
    """Replaces tuples by dicts with the keys "0", "1", ..., because RLDS has no tuples."""
    if isinstance(nest, Mapping):
        return {key: _as_dicts(value) for key, value in nest.items()}
    if isinstance(nest, tuple):
        return {str(i): _as_dicts(value) for i, value in enumerate(nest)}
    return nest


def _with_last_row(nest: object) -> object:
    """Adds a row of zeros for the last step, which has no action and no reward."""
    return map_nest(lambda leaf: np.concatenate([leaf, np.zeros_like(leaf[:1])]), nest)
