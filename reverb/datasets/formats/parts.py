# SPDX-License-Identifier: Apache-2.0
"""Episodes of files, of which one may lie in several, and what they are known by."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.data_files import DataFile
from reverb.datasets.formats.fields import Names, episode_of
from reverb.datasets.formats.limits import Limits

__all__ = ["Part", "episodes_of_parts", "index_of"]


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of an episode in one file.

    Attributes:
      file: The file.
      number: Number of the part in the file.
      index: The `episode_index` of the rows; `None` if they have none.
      names: The fields of the file.
      arrays: The rows of each field.
    """

    file: DataFile
    number: int
    index: int | float | None
    names: Names
    arrays: Mapping[str, np.ndarray]

    @property
    def key(self) -> str:
        """The key of the episode; see `Episode.key`."""
        if self.index is not None:
            return str(self.index)
        return f"{self.file.name}#{self.number}" if self.file.name else ""


def episodes_of_parts(
    parts: Iterable[Part],
    identity: str,
    limits: Limits,
    *,
    start: int = 0,
    position: int = 0,
    numbers: Mapping[str, int] | None = None,
    by_flags: bool = False,
) -> Iterator[Episode]:
    """Makes episodes of their parts.

    Args:
      parts: The parts of the files, in order.
      identity: The `source` of the episodes.
      limits: Bounds an episode that lies in several files.
      start: Position of the first episode that is wanted.
      position: That of the first part.
      numbers: Numbers of the first episode of each file; `None`: positions are the numbers.
      by_flags: Whether rows without `episode_index` continue in the next file until a flag is true.

    Raises:
      InvalidArgumentError: If the parts of an episode do not fit.
    """
    for at, part in enumerate(_joined(parts, limits, by_flags), position):
        if at >= start:
            number = at if numbers is None else numbers[part.file.name] + part.number
            facts = {"number": number, "key": part.key, "source": identity}
            yield episode_of(part.names, part.arrays, place=str(part.file.path), **facts)


def index_of(value: np.generic) -> int | float:
    """Returns an `episode_index` as a number of Python, a whole one as an `int`."""
    number = value.item()
    return int(number) if number == number // 1 else number


def _joined(parts: Iterable[Part], limits: Limits, by_flags: bool) -> Iterator[Part]:
    """Joins the last part of a file with the first one of the next, if they are one episode."""
    before: Part | None = None
    for part in parts:
        if before is not None:
            if part.number == 0 and _continues(before, part, by_flags):
                before = _both(before, part, limits)
                continue
            yield before
            before = None
        if part.index is None and not by_flags:
            yield part
        else:
            before = part
    if before is not None:
        yield before


def _continues(before: Part, part: Part, by_flags: bool) -> bool:
    if before.index is not None or not by_flags:
        return before.index is not None and before.index == part.index
    flags = [*before.names.fields_of("terminated"), *before.names.fields_of("truncated")]
    return not any(before.arrays[it][-1:].any() for it in flags)


def _both(before: Part, part: Part, limits: Limits) -> Part:
    where = f"{part.file.path}: episode {before.key or before.number}, which began in another file"
    if before.arrays.keys() != part.arrays.keys():
        names = sorted(before.arrays.keys() ^ part.arrays.keys())
        raise errors.InvalidArgumentError(f"{where}: only one of the files has the fields {names}")
    num_bytes = sum(it.nbytes for own in (before, part) for it in own.arrays.values())
    limits.check(where, "it", num_bytes)
    arrays = {}
    for field, first in before.arrays.items():
        after = part.arrays[field]
        if first.dtype != after.dtype or first.shape[1:] != after.shape[1:]:
            raise errors.InvalidArgumentError(
                f"{where}, field {field}: has dtype {after.dtype} and rows of shape "
                f"{list(after.shape[1:])}, and {first.dtype} and {list(first.shape[1:])} before"
            )
        arrays[field] = np.concatenate([first, after])
    (reward,) = before.names.fields_of("rewards")
    limits.check_length(where, len(arrays[reward]))
    return dataclasses.replace(before, arrays=arrays)
