# SPDX-License-Identifier: Apache-2.0
"""Writes episodes side by side, a step of each at a time, by the item makers of the recorders."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from reverb._recording import item_makers
from reverb._recording.item_columns import ItemColumns
from reverb._recording.items import Sequences, Transitions
from reverb._recording.nests import map_nest
from reverb._recording.step_writer import StepWriter
from reverb._recording.waiting import Waiting
from reverb.client import Client
from reverb.datasets.episode import Episode
from reverb.datasets.table_columns import TableColumns, info_rows

__all__ = ["NUM_LANES", "Lanes"]

# Number of episodes side by side. A step of all costs the time of a few episodes' steps.
NUM_LANES = 64

# A writer waits while more items are unconfirmed.
_MAX_UNCONFIRMED_ITEMS = 4096


class Lanes:
    """Writes transitions or sequences of groups of at most `num_lanes` episodes."""

    def __init__(
        self,
        client: Client,
        table: str,
        items: Transitions | Sequences,
        columns: TableColumns,
        priority: float | str,
        num_lanes: int = NUM_LANES,
    ) -> None:
        self._num_lanes = num_lanes
        self._table_columns = columns
        self._writer = StepWriter(
            client,
            table,
            priority,
            num_lanes,
            item_makers.num_rows(items, None),
            _MAX_UNCONFIRMED_ITEMS,
            Waiting(),
        )
        self._maker = item_makers.make_item_maker(
            items, self._writer, self._columns, columns.reward_dtype
        )
        self._names: list[str] = []
        self._item_columns: ItemColumns | None = None

    def write(self, group: Sequence[Episode]) -> None:
        """Writes the items of some episodes. Blocks until they are confirmed."""
        rows = _Rows(group, self._table_columns, self._num_lanes)
        self._names = rows.info_names
        lengths = np.zeros(self._num_lanes, np.int64)
        lengths[: len(group)] = [len(it) for it in group]
        self._writer.append(rows.first(), lengths > 0)
        steps = np.zeros(self._num_lanes, np.int64)
        for step in range(lengths.max()):
            going = lengths > step
            ended = lengths == step + 1
            row = rows.row(step)
            row["reward"], row["discount"] = self._maker.sums(row["reward"], row["terminated"])
            self._writer.append(row, going)
            steps[going] += 1
            # Items of episodes that have ended already are made.
            self._maker.after_step(row, np.where(going, steps, 0))
            if ended.any():
                self._maker.at_end(row, steps, ended, False)
                self._writer.end_episode(ended)
            self._writer.settle()
        self._writer.flush()

    def leave(self, exc_type: type[BaseException] | None) -> None:
        """Closes, at the end of a block that an exception may have left."""
        if exc_type is None:
            self._writer.close()
        else:
            self._writer.leave(exc_type)

    def _columns(self) -> ItemColumns:
        if self._item_columns is None:
            extras = self._table_columns.of_episode
            left_out = self._table_columns.left_out
            self._item_columns = ItemColumns(
                self._writer.history, None, extras, self._names, left_out
            )
            self._writer.name_columns(self._item_columns.paths)
        return self._item_columns


class _Rows:
    """The rows of some episodes, with those of each step side by side, `[B, ...]`."""

    def __init__(self, group: Sequence[Episode], columns: TableColumns, num_lanes: int) -> None:
        self._num_lanes = num_lanes
        longest = max(len(it) for it in group)
        infos = [columns.infos(it) for it in group]
        self.info_names = sorted(infos[0])
        self._observations = self._side_by_side([it.observations for it in group], longest + 1)
        steps: dict[str, Sequence[Any]] = {
            "action": [it.actions for it in group],
            "reward": [it.rewards.astype(np.float64, copy=False) for it in group],
            "terminated": [it.terminated for it in group],
            "truncated": [it.truncated for it in group],
        }
        for name in self.info_names:
            steps[name] = [
                info_rows(own[name], len(it)) for own, it in zip(infos, group, strict=True)
            ]
        self._steps = {name: self._side_by_side(nests, longest) for name, nests in steps.items()}
        self._constants: dict[str, np.ndarray] = {}
        numbers = [columns.numbers(it) for it in group]
        for index, name in enumerate(columns.of_episode):
            values = np.zeros(num_lanes, np.int64)
            values[: len(group)] = [it[index] for it in numbers]
            self._constants[name] = values
        self._reward_dtype = columns.reward_dtype

    def first(self) -> dict[str, Any]:
        """The first observations; all else is 0."""
        row: dict[str, Any] = {
            name: map_nest(lambda it: np.zeros_like(it[0]), nest)
            for name, nest in self._steps.items()
        }
        row["reward"] = np.zeros(self._num_lanes, self._reward_dtype)
        row["discount"] = np.zeros(self._num_lanes, np.float32)
        row["observation"] = map_nest(lambda it: it[0], self._observations)
        return row | self._constants

    def row(self, step: int) -> dict[str, Any]:
        """The values of the episodes at a step, and the observations after it."""
        row = {
            name: nest[step] if type(nest) is np.ndarray else map_nest(lambda it: it[step], nest)
            for name, nest in self._steps.items()
        }
        row["observation"] = map_nest(lambda it: it[step + 1], self._observations)
        return row | self._constants

    def _side_by_side(self, nests: Sequence[Any], longest: int) -> object:
        """Arrays `[T, B, ...]` of one array `[T, ...]` for each episode."""

        def joined(*arrays: np.ndarray) -> np.ndarray:
            rows = np.zeros((longest, self._num_lanes, *arrays[0].shape[1:]), arrays[0].dtype)
            for lane, array in enumerate(arrays):
                rows[: len(array), lane] = array
            return rows

        return map_nest(joined, *nests)
