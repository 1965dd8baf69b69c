# SPDX-License-Identifier: Apache-2.0
"""Writes whole episodes as items."""

from typing import Any

import numpy as np

from reverb.adapters.torchrl.library import torch
from reverb.adapters.torchrl.priorities import Priorities
from reverb.adapters.torchrl.sequence_keys import SequenceKeys
from reverb.adapters.torchrl.sequences import SequenceWriter
from reverb.adapters.torchrl.table_access import TableAccess
from reverb.errors import InvalidArgumentError

__all__ = ["EpisodeWriter", "writer_of_steps"]

# The writer keeps the steps of episodes that have not ended.
_MAX_STEPS = 65_536


def writer_of_steps(
    settings: dict[str, Any],
    access: TableAccess,
    keys: SequenceKeys,
    priorities: Priorities,
) -> SequenceWriter | None:
    """Returns the writer of a buffer that takes steps; `None` if each row is an item."""
    if settings["window"] is not None:
        return EpisodeWriter(access, keys, priorities)
    length = settings["sequence_length"]
    return None if length is None else SequenceWriter(access, length, keys, priorities)


class EpisodeWriter(SequenceWriter):
    """Makes an item of every episode when it has ended; `keys` name the fields that say so.

    `priorities` reduces those of steps to one for an item.
    """

    def __init__(self, access: TableAccess, keys: SequenceKeys, priorities: Priorities) -> None:
        super().__init__(access, _MAX_STEPS, keys, priorities)
        # Priorities of the steps of each environment's episode.
        self._values: list[list[Any]] = []

    def _found(self, data: Any) -> tuple[Any, Any]:
        return self._keys.find_whole(data)

    def _write(self, boundaries: tuple[Any, Any], columns: list[Any], values: Any) -> None:
        """Writes steps `[T, N]`."""
        num_steps, num_envs = columns[0].shape[:2]
        writer = self._writer_of(num_envs)
        begins, ends = self._moves(*boundaries)
        for step in range(num_steps):
            self._end(writer, begins[step])
            writer.append([column[step] for column in columns])
            if values is not None:
                for kept, value in zip(self._values, values[step], strict=True):
                    kept.append(value)
            self._end(writer, ends[step])
        writer.flush()

    def _writer_of(self, num_envs: int) -> Any:
        before = self._writer
        writer = super()._writer_of(num_envs)
        if writer is not before:
            self._values = [[] for _ in range(num_envs)]
        return writer

    def _end(self, writer: Any, where: np.ndarray[Any, Any]) -> None:
        """Ends the episodes of some environments, bool `[N]`, and makes items of them."""
        if not where.any():
            return
        num_steps = writer.episode_steps
        for length in np.unique(num_steps[where]):
            if length > _MAX_STEPS:
                raise InvalidArgumentError(
                    f"an episode for table {self._access.table} must have at most {_MAX_STEPS:,} "
                    f"steps, got {length:,}; with a sequence_length it may be longer"
                )
            rows = where & (num_steps == length)
            if length:  # A flag has ended the episode before the next trajectory begins.
                items = [column[-length:] for column in writer.history]
                writer.create_items(
                    self._access.table, self._priorities_of(rows, length), items, where=rows
                )
        for row in np.flatnonzero(where):
            self._values[row].clear()
        writer.end_episode(where)

    def _priorities_of(self, rows: np.ndarray[Any, Any], length: int) -> Any:
        """Priorities of the episodes of some environments, `[N]`, or one for all.

        An episode has priorities only if all its steps have them.
        """
        if not self._values or any(len(self._values[row]) != length for row in rows.nonzero()[0]):
            return self._priorities.of_items(None, len(rows))
        priorities = np.ones(len(rows))
        for row in rows.nonzero()[0]:
            priorities[row] = self._priorities.of_items(torch.stack(self._values[row]), 1)[0]
        return priorities
