# SPDX-License-Identifier: Apache-2.0
"""Episodes of record batches of Arrow, whose rows are episodes or steps."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_columns import Column, fields_of, has_episodes, read
from reverb.datasets.formats.fields import Names, episode_of

__all__ = ["Rows"]

# Fields that number the episodes, where a row is a step.
_NUMBERS = ("episode_index", "episode_id")


class Rows:
    """Makes episodes of record batches that have one schema.

    Args:
      pa: The module pyarrow.
      schema: The schema.
      place: Place for errors.
      identity: Tells the source from others.
    """

    def __init__(self, pa: Any, schema: Any, place: str, identity: str) -> None:
        self._pa = pa
        self._place = place
        self._identity = identity
        fields = fields_of(pa, schema)
        self._number_field = next((it for it in _NUMBERS if it in fields), None)
        named = [it for it in fields if it not in _NUMBERS]
        self._names = Names.of(place, named)
        (reward,) = self._names.fields_of("rewards")
        self.rows_are_episodes = has_episodes(pa, fields[reward])
        self._fields = {it: fields[it] for it in self._names.parts}
        if not self.rows_are_episodes and self._number_field is not None:
            self._fields[self._number_field] = fields[self._number_field]

    def episodes(self, batches: Iterable[Any], number: int) -> Iterator[Episode]:
        """Yields the episodes of batches; the first has this number.

        Raises:
          InvalidArgumentError: As `read` of the columns, and if the fields of an episode differ in
            their lists.
        """
        steps = _Steps(self)
        for batch in batches:
            if not batch.num_rows:
                continue
            where = f"{self._place}: episode {number}"
            columns = read(self._pa, batch, self._fields, self.rows_are_episodes, where)
            if self.rows_are_episodes:
                for row in range(batch.num_rows):
                    yield self._episode(
                        {name: _part(it, row) for name, it in columns.items()}, number
                    )
                    number += 1
            else:
                for arrays in steps.add({name: it.values for name, it in columns.items()}):
                    yield self._episode(arrays, number)
                    number += 1
        for arrays in steps.rest():
            yield self._episode(arrays, number)
            number += 1

    def _episode(self, arrays: dict[str, np.ndarray], number: int) -> Episode:
        return episode_of(
            self._names, arrays, number=number, source=self._identity, place=self._place
        )

    def ends(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the rows after which an episode ends, where a row is a step, and it is told.

        By numbers of episodes, the end of the last one is told by the next row.
        """
        if self._number_field is not None:
            numbers = columns[self._number_field]
            return np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        either = np.zeros(len(next(iter(columns.values()))), np.bool_)
        for part in ("terminated", "truncated"):
            for field in self._names.fields_of(part):
                either |= columns[field].astype(np.bool_).reshape(len(either), -1).any(axis=1)
        return np.flatnonzero(either) + 1


class _Steps:
    """Rows that are steps, until their episode ends."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        # What was added since the last end, oldest first.
        self._pending: list[dict[str, np.ndarray]] = []

    def add(self, columns: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """Adds rows, and yields the episodes that are complete."""
        if self._pending and self._rows._number_field is not None:
            # The number of the first row tells whether the episode before has ended.
            last = self._pending[-1][self._rows._number_field][-1:]
            if last[0] != columns[self._rows._number_field][0]:
                yield from self.rest()
        begin = 0
        for end in self._rows.ends(columns).tolist():
            self._pending.append({name: it[begin:end] for name, it in columns.items()})
            yield from self.rest()
            begin = end
        rest = {name: it[begin:] for name, it in columns.items()}
        if len(next(iter(rest.values()))):
            self._pending.append(rest)

    def rest(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the episode of the rows so far, if there are any."""
        if self._pending:
            pending, self._pending = self._pending, []
            yield {name: np.concatenate([it[name] for it in pending]) for name in pending[0]}


def _part(column: Column, row: int) -> np.ndarray:
    if column.offsets is None:
        raise errors.InternalError("a column of episodes has offsets")
    return column.values[column.offsets[row] : column.offsets[row + 1]]
