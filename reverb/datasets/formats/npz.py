# SPDX-License-Identifier: Apache-2.0
"""Format npz: `.npz` files of NumPy, as `reverb export` writes them, and flat ones like D4RL's.

A field is one array of the rows of all episodes. Their ends are in `<field>/offsets`, or where
`episode_index` changes, or where a flag is true. Rows are read one after another, so that a file
needs no memory.
"""

import dataclasses
import pathlib
from collections.abc import Iterator

import numpy as np

from reverb import errors
from reverb.datasets.episode import Episode, row_problem
from reverb.datasets.formats.data_files import DataFile, old_numbers
from reverb.datasets.formats.fields import INDEX
from reverb.datasets.formats.files import described_dtypes, files_of, restored
from reverb.datasets.formats.limits import MAX_EPISODES, Limits
from reverb.datasets.formats.npz_archive import OFFSETS, Archive
from reverb.datasets.formats.parts import Part, episodes_of_parts, index_of
from reverb.datasets.left_out import LeftOut, remedy

__all__ = ["NpzSource"]

# Number of flags or indices that are read at a time, to find where episodes end.
_ROWS_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class _Ends:
    """Where the episodes of a file begin, and the end of the last one; and their indices."""

    bounds: np.ndarray
    indices: np.ndarray | None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def index(self, number: int) -> int | float | None:
        """The `episode_index` of an episode."""
        return None if self.indices is None else index_of(self.indices[number])


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
        leave_out: LeftOut,
        limits: Limits,
    ) -> None:
        self.name = name
        self._leave_out = leave_out
        self._limits = limits
        self._files = files_of(name, path, ".npz")
        self.identity = f"npz:{pathlib.Path(path).expanduser().resolve()}"
        fields: set[str] = set()
        self._ends = [_ends(it.path, leave_out, fields) for it in self._files]
        leave_out.check_parts(name, fields)
        counts = {file.name: len(it) for file, it in zip(self._files, self._ends, strict=True)}
        self._numbers = old_numbers(self._files, lambda it: counts[it.name])
        # The position of the first part of each file, and at last their number.
        self._positions = [0]
        last = None
        for ends in self._ends:
            if len(ends):
                if last is not None and last == ends.index(0):
                    self._positions[-1] -= 1
                last = ends.index(len(ends) - 1)
            self._positions.append(self._positions[-1] + len(ends))
        self.num_episodes: int | None = self._positions[-1]

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this position on."""
        firsts = [max(start - it, 0) for it in self._positions]
        begin = next((i for i, it in enumerate(self._ends) if firsts[i] < len(it)), None)
        if begin is not None:
            yield from episodes_of_parts(
                self._parts(begin, firsts[begin]),
                self.identity,
                self._limits,
                position=self._positions[begin] + firsts[begin],
                numbers=self._numbers,
            )

    def _parts(self, begin: int, first: int) -> Iterator[Part]:
        """The parts of the files from one of them and from one of its parts on."""
        for at in range(begin, len(self._files)):
            file = self._files[at]
            number = self._positions[at] if self._numbers is None else self._numbers[file.name]
            yield from self._of_file(file, self._ends[at], first if at == begin else 0, number)

    def _of_file(self, file: DataFile, ends: _Ends, first: int, number: int) -> Iterator[Part]:
        """The parts of a file; its first one has the number `number`."""
        path, bounds = file.path, ends.bounds
        dtypes = described_dtypes(path)
        with Archive(path, self._leave_out) as archive:
            names = archive.names
            # Rows before each episode, beside those of the rewards: 1 for each with a reset.
            resets = {field: _has_resets(archive, field, bounds) for field in names.parts}
            members = {field: archive.member(field) for field in names.parts}
            for field, member in members.items():
                rows = int(bounds[-1]) + len(ends) * resets[field]
                member.check_rows(rows, int(bounds[-1]))
            for index in range(first, len(ends)):
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
                yield Part(file, index, ends.index(index), names, arrays)


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
    num_rows, num_steps = np.diff(found), np.diff(bounds)
    for has_resets in (False, True):
        if (num_rows == num_steps + has_resets).all():
            return has_resets
    # The first episode shows for all whether they have a row for the reset.
    wrong = int(np.argmax(num_rows != num_steps + (num_rows[0] == num_steps[0] + 1)))
    problem = row_problem(int(num_rows[wrong]), int(num_steps[wrong])) + remedy(field)
    raise errors.DataLossError(f"{archive.path}: episode {wrong}, field {field}: {problem}")


def _ends(path: pathlib.Path, leave_out: LeftOut, fields: set[str]) -> _Ends:
    """Finds the episodes of a file: by offsets, by `episode_index`, or by flags.

    Adds the names of its fields to `fields`.
    """
    with Archive(path, leave_out) as archive:
        fields.update(archive.names.parts)
        (reward,) = archive.names.fields_of("rewards")
        offsets = archive.offsets(reward)
        total = archive.member(reward).check_numbers().num_rows
        indices = None
        if archive.has_index:
            indices = archive.member(INDEX).check_numbers().check_rows(total, total)
        if offsets is not None:
            if indices is None:
                return _Ends(offsets, None)
            rows = [indices.rows(it, it + 1, n) for n, it in enumerate(offsets[:-1].tolist())]
            return _Ends(offsets, np.concatenate([np.zeros(0, np.int64), *rows]))
        flags = [
            archive.member(field).check_numbers().check_rows(total, total)
            for part in ("terminated", "truncated")
            for field in archive.names.fields_of(part)
        ]
        ends: list[np.ndarray] = []
        found: list[np.ndarray] = []
        count = 0
        for start in range(0, total, _ROWS_AT_ONCE):
            end = min(start + _ROWS_AT_ONCE, total)
            if indices is not None:
                # With the row after these, because an episode ends where the next one differs.
                values = indices.rows(start, min(end + 1, total), count).reshape(-1)
                differs = values[1:] != values[:-1]
                found.append(values[:-1][differs])
            else:
                differs = np.zeros(end - start, np.bool_)
                for member in flags:
                    differs |= member.rows(start, end, count).reshape(end - start) != 0
            ends.append(np.flatnonzero(differs) + start + 1)
            count += len(ends[-1])
            if count > MAX_EPISODES:
                raise errors.InvalidArgumentError(
                    f"{path}: has more than {MAX_EPISODES:,} episodes; divide it into several files"
                )
        bounds = np.concatenate([np.zeros(1, np.int64), *ends])
        # Steps after the last end are an episode without an end.
        if bounds[-1] != total:
            bounds = np.append(bounds, total)
            if indices is not None:
                found.append(indices.rows(total - 1, total, count).reshape(-1))
        return _Ends(bounds, np.concatenate(found) if found else None)
