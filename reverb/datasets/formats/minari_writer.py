# SPDX-License-Identifier: Apache-2.0
"""Writes datasets of Minari, by Minari itself."""

import itertools
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.episode import Episode, leaves
from reverb.datasets.formats.fields import with_reset_rows
from reverb.datasets.formats.minari import REQUIREMENT, import_minari
from reverb.datasets.library import library

__all__ = ["save"]


def save(
    episodes: Iterable[Episode],
    dataset_id: str,
    *,
    env: str | None = None,
    data_format: str | None = None,
    **facts: object,
) -> int:
    """Writes a dataset of Minari, losslessly: images are not encoded as JPEG.

    Infos without a row for the reset get one of zeros. `facts` are further arguments of
    `minari.create_dataset_from_buffers`. Returns the number of episodes.

    Raises:
      InvalidArgumentError: If the dataset exists, the id is not one of Minari, there are no
        episodes, or Minari refuses them. Nothing is left then.
      FailedPreconditionError: If Minari is not installed.
    """
    minari = import_minari()
    given = iter(episodes)
    first = next(given, None)
    if first is None:
        raise errors.InvalidArgumentError(f"minari:{dataset_id}: there are no episodes to write")
    root = library("minari", REQUIREMENT, "minari", "minari.storage.datasets_root_dir")
    path = root.get_dataset_path(dataset_id)
    if path.exists():
        raise errors.InvalidArgumentError(
            f"minari:{dataset_id} exists in {path}; `minari delete {dataset_id}` removes it"
        )
    count = 0

    def buffers() -> Iterator[Any]:
        nonlocal count
        for episode in itertools.chain([first], given):
            _check_like(first, episode)
            yield _buffer(minari, episode, nested=data_format in (None, "hdf5"))
            count += 1

    spaces: dict[str, Any] = {} if env is None else {"env": env}
    if env is None:
        spaces["observation_space"] = _space(first, "observations", first.observations)
        spaces["action_space"] = _space(first, "actions", first.actions)
    if data_format is not None:
        spaces["data_format"] = data_format
    try:
        with warnings.catch_warnings():
            # Minari wishes for an author and a link to code.
            warnings.simplefilter("ignore", UserWarning)
            minari.create_dataset_from_buffers(
                dataset_id, buffers(), jpeg_encoding=False, **spaces, **facts
            )
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, errors.ReverbError) or not isinstance(error, Exception):
            raise
        if isinstance(error, ImportError):
            raise errors.FailedPreconditionError(
                f"minari:{dataset_id}: Minari lacks a package: {error}; "
                f"pip install '{REQUIREMENT}' pillow"
            ) from None
        raise errors.InvalidArgumentError(
            f"minari:{dataset_id}: episode {count}: Minari cannot write the dataset: "
            f"{error or type(error).__name__}"
        ) from error
    return count


def _check_like(first: Episode, episode: Episode) -> None:
    """Checks that infos have the names of the first episode, because Minari does not."""
    if episode.infos.keys() != first.infos.keys():
        raise episode.fault(
            "infos", f"has {sorted(episode.infos)}, and the first episode {sorted(first.infos)}"
        )


def _buffer(minari: Any, episode: Episode, nested: bool) -> object:
    given = episode.infos
    if not nested:  # Minari itself reads the nests of these formats as objects.
        given = {path.partition("/")[2]: leaf for path, leaf in leaves("infos", given)}
    infos = with_reset_rows(given, len(episode))
    if not nested:  # Nor does it read arrays of one dimension that it has written; lists it does.
        infos = {name: list(it) if it.ndim == 1 else it for name, it in infos.items()}
    return minari.data_collector.EpisodeBuffer(
        seed=episode.metadata.get("seed"),
        options=episode.metadata.get("options"),
        observations=episode.observations,
        actions=episode.actions,
        rewards=episode.rewards,
        terminations=episode.terminated,
        truncations=episode.truncated,
        infos=infos or None,
    )


def _space(episode: Episode, path: str, nest: Any) -> object:
    """A space of all values of the dtypes and shapes of a nest, which is a field of the episode."""
    spaces = library("gymnasium", "gymnasium>=1.0", "minari", "gymnasium.spaces")
    if isinstance(nest, Mapping):
        return spaces.Dict(
            {key: _space(episode, f"{path}/{key}", value) for key, value in nest.items()}
        )
    if isinstance(nest, tuple):
        return spaces.Tuple(
            [_space(episode, f"{path}/{index}", value) for index, value in enumerate(nest)]
        )
    dtype, shape = nest.dtype, nest.shape[1:]
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, np.bool_)
    if dtype.kind not in "iu":
        raise episode.fault(path, f"has dtype {dtype}, which has no space; npz and parquet have it")
    bounds = np.iinfo(dtype)
    return spaces.Box(bounds.min, bounds.max, shape, dtype)
