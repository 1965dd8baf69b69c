# SPDX-License-Identifier: Apache-2.0
"""Parts of episodes in record batches of Arrow, whose rows are episodes or steps."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from reverb.datasets.formats.arrow_columns import Column, fields_of, has_episodes, read
from reverb.datasets.formats.data_files import DataFile
from reverb.datasets.formats.fields import INDEX, Names
from reverb.datasets.formats.limits import Limits
from reverb.datasets.formats.parts import Part, index_of
from reverb.datasets.formats.step_rows import split_steps
from reverb.datasets.left_out import LeftOut

__all__ = ["Rows"]

# Fields that number the episodes, where a row is a step.
_NUMBERS = (INDEX, "episode_id")

_FLAGS = ("terminated", "truncated")


class Rows:
    """Makes parts of episodes of record batches that have one schema.

    Attributes:
      fields: The names of all fields that are read.
      columns: The columns of the batches that are read.
      rows_are_episodes: Whether a row is an episode; otherwise it is a step.
      has_index: Whether the rows have `episode_index`, or another number of their episode.
    """

    def __init__(
        self, pa: object, schema: object, place: str, leave_out: LeftOut, limits: Limits
    ) -> None:
        self._pa = pa
        self._limits = limits
        fields = fields_of(pa, schema, place)
        numbers = [it for it in _NUMBERS if it in fields and not leave_out.has(f"infos/{it}")]
        self._number_field = next(iter(numbers), None)
        named = [it for it in fields if it not in _NUMBERS]
        self._names = Names.of(place, named, leave_out)
        (reward,) = self._names.fields_of("rewards")
        self.rows_are_episodes = has_episodes(pa, fields[reward])
        self._fields = {it: fields[it] for it in self._names.parts}
        if self.rows_are_episodes and self._number_field != INDEX:
            self._number_field = None
        self.has_index = self._number_field is not None
        if self._number_field is not None:
            self._fields[self._number_field] = fields[self._number_field]
        self.fields = list(self._fields)
        self.columns = self._columns_of(schema, self._fields)
        # The columns that mark where episodes end.
        ends = [self._number_field] if self._number_field is not None else self._flags()
        self.end_columns = self._columns_of(schema, ends)

    def parts(self, file: DataFile, batches: Iterable[Any], number: int) -> Iterator[Part]:
        """Yields the parts of episodes in a file; in errors the first has this number.

        Raises:
          InvalidArgumentError: As `read` of the columns, and if the fields of an episode differ in
            their lists.
        """
        rows = self._episodes if self.rows_are_episodes else self._steps
        for count, arrays in enumerate(rows(batches, str(file.path), number)):
            index = None
            if self._number_field is not None:
                own = arrays.pop(self._number_field)
                index = index_of(own[0]) if len(own) else None
            yield Part(file, count, index, self._names, arrays)

    def count(self, batches: Iterable[Any], place: str) -> int:
        """Counts the episodes of a file whose rows are steps, by its `end_columns`."""
        fields = {it: self._fields[it] for it in self._fields if it in self.end_columns}
        columns = self._columns(batches, fields, place)
        ends = split_steps(columns, self._number_field, self._flags(), self._limits, place)
        return sum(1 for _ in ends)

    def _episodes(
        self, batches: Iterable[Any], place: str, number: int
    ) -> Iterator[dict[str, np.ndarray]]:
        for batch in batches:
            where = f"{place}: episode {number}"
            lists = {it: own for it, own in self._fields.items() if it != self._number_field}
            columns = read(self._pa, batch, lists, True, where)
            if self._number_field is not None:
                own = {self._number_field: self._fields[self._number_field]}
                columns |= read(self._pa, batch, own, has_episodes(self._pa, *own.values()), where)
            for row in range(batch.num_rows):
                arrays = {name: _part(it, row) for name, it in columns.items()}
                where = f"{place}: episode {number}"
                self._limits.check(where, "it", sum(it.nbytes for it in arrays.values()))
                yield arrays
                number += 1

    def _steps(
        self, batches: Iterable[Any], place: str, number: int
    ) -> Iterator[dict[str, np.ndarray]]:
        columns = self._columns(batches, self._fields, place)
        return split_steps(columns, self._number_field, self._flags(), self._limits, place, number)

    def _columns(
        self, batches: Iterable[Any], fields: Mapping[str, Any], place: str
    ) -> Iterator[dict[str, np.ndarray]]:
        """The columns of batches whose rows are steps."""
        row = 0
        for batch in batches:
            columns = read(self._pa, batch, fields, False, f"{place}: rows from {row} on")
            yield {name: it.values for name, it in columns.items()}
            row += batch.num_rows

    def _flags(self) -> list[str]:
        return [it for part in _FLAGS for it in self._names.fields_of(part)]

    @staticmethod
    def _columns_of(schema: Any, fields: Iterable[str]) -> list[str]:
        """The columns of a schema that have these fields, of which some are in structs."""
        outer = {it.partition("/")[0] for it in fields} | set(fields)
        return [it for it in schema.names if it in outer]


def _part(column: Column, row: int) -> np.ndarray:
    if column.offsets is None:
        return column.values[row : row + 1]
    return column.values[column.offsets[row] : column.offsets[row + 1]]
