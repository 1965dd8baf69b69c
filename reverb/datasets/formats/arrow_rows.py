# SPDX-License-Identifier: Apache-2.0
"""Episodes of record batches of Arrow, whose rows are episodes or steps."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.episode import Episode
from reverb.datasets.formats.arrow_columns import Column, fields_of, has_episodes, read
from reverb.datasets.formats.fields import Names, episode_of
from reverb.datasets.formats.limits import Limits
from reverb.datasets.formats.step_rows import split_steps

__all__ = ["Rows"]

# Fields that number the episodes, where a row is a step.
_NUMBERS = ("episode_index", "episode_id")

_FLAGS = ("terminated", "truncated")


class Rows:
    """Makes episodes of record batches that have one schema.

    Attributes:
      columns: The columns of the batches that are read.
    """

    def __init__(
        self,
        pa: Any,
        schema: Any,
        place: str,
        identity: str,
        leave_out: Collection[str],
        limits: Limits,
    ) -> None:
        self._pa = pa
        self._limits = limits
        self._place = place
        self._identity = identity
        fields = fields_of(pa, schema, place)
        self._number_field = next((it for it in _NUMBERS if it in fields), None)
        named = [it for it in fields if it not in _NUMBERS]
        self._names = Names.of(place, named, leave_out)
        (reward,) = self._names.fields_of("rewards")
        self.rows_are_episodes = has_episodes(pa, fields[reward])
        self._fields = {it: fields[it] for it in self._names.parts}
        if not self.rows_are_episodes and self._number_field is not None:
            self._fields[self._number_field] = fields[self._number_field]
        inner = {it.partition("/")[0] for it in self._fields} | set(self._fields)
        self.columns = [it for it in schema.names if it in inner]

    def check(self, schema: Any, place: str) -> None:
        """Checks that a file has the fields of the first one.

        Raises:
          InvalidArgumentError: If it has not.
        """
        fields = fields_of(self._pa, schema, place)
        for name, field in self._fields.items():
            if name not in fields or fields[name].type != field.type:
                raise errors.InvalidArgumentError(
                    f"{place}: field {name}: is missing, or has another type than in the first file"
                )

    def episodes(self, batches: Iterable[Any], number: int) -> Iterator[Episode]:
        """Yields the episodes of batches; the first has this number.

        Raises:
          InvalidArgumentError: As `read` of the columns, and if the fields of an episode differ in
            their lists.
        """
        if not self.rows_are_episodes:
            flags = [it for part in _FLAGS for it in self._names.fields_of(part)]
            columns = self._columns(batches)
            for arrays in split_steps(
                columns, self._number_field, flags, self._limits, self._place
            ):
                yield self._episode(arrays, number)
                number += 1
            return
        for batch in batches:
            where = f"{self._place}: episode {number}"
            columns = read(self._pa, batch, self._fields, True, where)
            for row in range(batch.num_rows):
                arrays = {name: _part(it, row) for name, it in columns.items()}
                where = f"{self._place}: episode {number}"
                self._limits.check(where, "it", sum(it.nbytes for it in arrays.values()))
                yield self._episode(arrays, number)
                number += 1

    def _columns(self, batches: Iterable[Any]) -> Iterator[dict[str, np.ndarray]]:
        """The columns of batches whose rows are steps."""
        row = 0
        for batch in batches:
            where = f"{self._place}: rows from {row} on"
            columns = read(self._pa, batch, self._fields, False, where)
            yield {name: it.values for name, it in columns.items()}
            row += batch.num_rows

    def _episode(self, arrays: dict[str, np.ndarray], number: int) -> Episode:
        return episode_of(
            self._names, arrays, number=number, source=self._identity, place=self._place
        )


def _part(column: Column, row: int) -> np.ndarray:
    if column.offsets is None:
        raise errors.InternalError("a column of episodes has offsets")
    return column.values[column.offsets[row] : column.offsets[row + 1]]
