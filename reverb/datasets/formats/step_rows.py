# SPDX-License-Identifier: Apache-2.0
"""Episodes of rows that are steps."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from reverb import errors
from reverb.datasets.formats.limits import Limits

__all__ = ["split_steps"]

Columns = dict[str, np.ndarray]


def split_steps(
    batches: Iterable[Columns],
    number_field: str | None,
    flags: Sequence[str],
    limits: Limits,
    place: str,
    number: int = 0,
) -> Iterator[Columns]:
    """Joins and splits rows, so that each result has those of one episode.

    Args:
      batches: Columns of consecutive rows, `[R, ...]` each.
      number_field: A column with the number of the episode; `None`: flags mark the ends.
      flags: Columns that are true in the last step of an episode.
      limits: Bounds the rows that are kept until their episode ends.
      place: Where the rows are, for errors.
      number: Number of the first episode, for errors.

    Raises:
      InvalidArgumentError: If an episode is too large, or its number is none.
    """
    pending = _Pending(limits, place, number)
    for columns in batches:
        num_rows = len(next(iter(columns.values())))
        if not num_rows:
            continue
        if number_field is not None and columns[number_field].ndim != 1:
            raise errors.InvalidArgumentError(f"{place}, field {number_field}: must be one number")
        if pending.parts and number_field is not None:
            # The number of the first row shows whether the episode before it has ended.
            before = pending.parts[-1][number_field][-1]
            if before != columns[number_field][0]:
                yield pending.joined()
        begin = 0
        for end in _ends(columns, num_rows, number_field, flags).tolist():
            pending.add({name: it[begin:end] for name, it in columns.items()})
            yield pending.joined()
            begin = end
        if begin < num_rows:
            pending.add({name: it[begin:] for name, it in columns.items()})
    if pending.parts:
        yield pending.joined()


class _Pending:
    """Rows since the last end, oldest first."""

    def __init__(self, limits: Limits, place: str, number: int) -> None:
        self.parts: list[Columns] = []
        self._limits = limits
        self._place = place
        self._number = number
        self._num_rows = self._num_bytes = 0

    def add(self, columns: Columns) -> None:
        """Appends rows."""
        self._num_rows += len(next(iter(columns.values())))
        self._num_bytes += sum(it.nbytes for it in columns.values())
        where = f"{self._place}: episode {self._number}"
        self._limits.check_length(where, self._num_rows)
        self._limits.check(where, "it", self._num_bytes)
        self.parts.append(columns)

    def joined(self) -> Columns:
        """Takes the rows, which are an episode."""
        parts, self.parts = self.parts, []
        self._number, self._num_rows, self._num_bytes = self._number + 1, 0, 0
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([it[name] for it in parts]) for name in parts[0]}


def _ends(
    columns: Columns, num_rows: int, number_field: str | None, flags: Sequence[str]
) -> np.ndarray:
    """The rows before which an episode ends, as far as these rows show it."""
    if number_field is not None:
        numbers = columns[number_field]
        return np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    either = np.zeros(num_rows, np.bool_)
    for field in flags:
        either |= columns[field].astype(np.bool_).reshape(num_rows, -1).any(axis=1)
    return np.flatnonzero(either) + 1
