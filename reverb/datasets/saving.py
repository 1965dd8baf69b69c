# SPDX-License-Identifier: Apache-2.0
"""Writes episodes as a dataset, by the name of its format."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from reverb import errors
from reverb.datasets.episode import Episode, checked
from reverb.datasets.formats import SAVED, imported, split_format

__all__ = ["save"]


def save(
    episodes: Iterable[Episode],
    target: str,
    *,
    progress: Callable[[int], Any] | None = None,
    **options: object,
) -> int:
    """Writes episodes as a new dataset, by the library of its format.

    The dataset appears when it is complete, or not at all. docs/howto/datasets.md has a table of
    what each format keeps and loses. Memory is that of a few episodes.

    Example:
      >>> from reverb import datasets
      >>> datasets.save([], "zip:mine")
      Traceback (most recent call last):
      ...
      reverb.errors.InvalidArgumentError: target must begin with a format, one of minari:, hf:, ...

    Args:
      episodes: The episodes, as from `episodes` or `stored`.
      target: The format, a colon, and the id or path of the dataset: `minari:ID` (in the directory
        of Minari), `hf:PATH`, `rlds:PATH`, `lerobot:PATH`.
      progress: Called with the number of episodes so far.
      **options: Options of the format. `minari` has `env`, the id of the environment, which has the
        spaces (without it they have no bounds), and `data_format`, "hdf5", "arrow" or "parquet".
        `rlds` has `discount`, that of a step (0.99). `lerobot` has `fps`, which is needed, `task`,
        the task of all episodes, and `robot_type`.

    Returns:
      The number of episodes.

    Raises:
      InvalidArgumentError: If the dataset exists, if there are no episodes, if one is not whole, or
        if it has what the format lacks. The text names episode and field.
      TypeError: If the format has no such option.
      FailedPreconditionError: If the library of the format is not installed.
    """
    prefix, rest = split_format("target", target, SAVED)
    known = SAVED[prefix].options
    for name in options:
        if name not in known:
            raise TypeError(f"the format {prefix} has no option {name!r}, only {list(known)}")
    for name, it in known.items():
        if it.is_needed and name not in options:
            raise errors.InvalidArgumentError(f"{name} must be given for the format {prefix}")
    whole = (it for given in episodes if (it := checked(given, advises=False)) is not None)
    if progress is not None:
        whole = _reported(whole, progress)
    return imported(SAVED[prefix].save)(whole, rest, **options)


def _reported(episodes: Iterable[Episode], progress: Callable[[int], Any]) -> Iterator[Episode]:
    """The episodes; reports each when the format asks for the next one, and so has written it."""
    for count, episode in enumerate(episodes, start=1):
        yield episode
        progress(count)
