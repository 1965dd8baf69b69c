# SPDX-License-Identifier: Apache-2.0
"""Format npz: `.npz` files of NumPy, as `reverb export` writes them, and flat ones like D4RL's.

A field is one array of the rows of all episodes. Their ends are in `<field>/offsets`, or are where
a flag is true. Rows are read one after another, so that a file needs no memory.
"""

import pathlib
from collections.abc import Collection, Iterator

import numpy as np

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.fields import episode_of
from reverb.datasets.formats.files import described_dtypes, files_of, restored
from reverb.datasets.formats.limits import DEFAULT_LIMITS, MAX_EPISODES, Limits
from reverb.datasets.formats.npz_archive import OFFSETS, Archive

__all__ = ["NpzSource"]

# Number of flags that are read at a time, to find where episodes end.
_FLAGS_AT_ONCE = 1 << 20


class NpzSource:
    """A `.npz` file, or a directory of them; see `Source`.

    Raises:
      InvalidArgumentError: If there is no such file, or if a field is missing.
      DataLossError: If a file is damaged.
    """

    def __init__(
        self,
        name: str,
        path: str,
        leave_out: Collection[str] = (),
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.name = name
        self._leave_out = leave_out
        self._limits = limits
        self._paths = files_of(name, path, ".npz")
        self.identity = f"npz:{pathlib.Path(path).expanduser().resolve()}"
        self._bounds = [_bounds(it, leave_out) for it in self._paths]
        self.num_episodes: int | None = sum(len(it) - 1 for it in self._bounds)

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this number on."""
        number = 0
        for path, bounds in zip(self._paths, self._bounds, strict=True):
            count = len(bounds) - 1
            first = min(max(start - number, 0), count)
            if first < count:
                yield from self._of_file(path, bounds, first, number)
            number += count

    def _of_file(
        self, path: pathlib.Path, bounds: np.ndarray, first: int, number: int
    ) -> Iterator[Episode]:
        """The episodes of a file; its first one has the number `number`."""
        dtypes = described_dtypes(path)
        with Archive(path, self._leave_out) as archive:
            names = archive.names
            # Rows before each episode, beside those of the rewards: 1 for each with a reset.
            resets = {field: _has_resets(archive, field, bounds) for field in names.parts}
            members = {field: archive.member(field) for field in names.parts}
            for index in range(first, len(bounds) - 1):
                where = f"{path}: episode {number + index}"
                start, end = int(bounds[index]), int(bounds[index + 1])
                spans = {
                    field: (start + index, end + index + 1) if it else (start, end)
                    for field, it in resets.items()
                }
                self._limits.check_length(where, end - start)
                size = sum((b - a) * members[field].row_bytes for field, (a, b) in spans.items())
                self._limits.check(where, "it", size)
                arrays = {}
                for field, member in members.items():
                    rows = member.rows(*spans[field], number + index)
                    place = f"{where}, field {field}"
                    arrays[field] = restored(rows, dtypes.get(field), place)
                facts = {"number": number + index, "source": self.identity, "place": str(path)}
                yield episode_of(names, arrays, **facts)


def _has_resets(archive: Archive, field: str, bounds: np.ndarray) -> bool:
    """Whether each episode has a row more in a field than it has rewards.

    Raises:
      DataLossError: If one has another number of rows.
    """
    found = archive.offsets(field)
    if found is None:
        return False
    place = f"{archive.path}: field {field}{OFFSETS}"
    if len(found) != len(bounds):
        raise errors.DataLossError(
            f"{place}: has {len(found) - 1} episodes, and the rewards have {len(bounds) - 1}"
        )
    found -= bounds
    for has_resets in (False, True):
        if (found == np.arange(len(found)) * has_resets).all():
            return has_resets
    wrong = int(np.argmax((np.diff(found) < 0) | (np.diff(found) > 1)))
    raise errors.DataLossError(
        f"{archive.path}: episode {wrong}, field {field}: has other rows than the rewards, or than "
        "those and one for the reset"
    )


def _bounds(path: pathlib.Path, leave_out: Collection[str]) -> np.ndarray:
    """Returns where the episodes of a file begin, and the end of the last one."""
    with Archive(path, leave_out) as archive:
        (reward,) = archive.names.fields_of("rewards")
        offsets = archive.offsets(reward)
        if offsets is not None:
            return offsets
        total = archive.member(reward).check_numbers().num_rows
        ends: list[np.ndarray] = []
        count = 0
        flags = [
            archive.member(field).check_numbers()
            for part in ("terminated", "truncated")
            for field in archive.names.fields_of(part)
        ]
        for start in range(0, total, _FLAGS_AT_ONCE):
            end = min(start + _FLAGS_AT_ONCE, total)
            either = np.zeros(end - start, np.bool_)
            for member in flags:
                either |= member.rows(start, end, count).reshape(end - start) != 0
            ends.append(np.flatnonzero(either) + start + 1)
            count += len(ends[-1])
            if count > MAX_EPISODES:
                raise errors.InvalidArgumentError(
                    f"{path}: has more than {MAX_EPISODES:,} episodes; divide it into several files"
                )
        found = np.concatenate([np.zeros(1, np.int64), *ends])
        # Steps after the last end are an episode without an end.
        return found if found[-1] == total else np.append(found, total)
