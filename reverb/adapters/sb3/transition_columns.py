# SPDX-License-Identifier: Apache-2.0
"""The columns of a transition, as cells of a writer's history."""

from typing import Any

import reverb
from reverb.adapters.sb3 import arrays
from reverb.adapters.sb3.step import TransitionSpec

__all__ = ["TransitionColumns"]

# Limit of cached transitions. There are few, unless stacks of frames break here and there.
_MAX_CACHED = 1_000


class TransitionColumns:
    """Makes the columns of transitions; all rows count from the newest one, -1."""

    def __init__(self, writer: reverb.BatchedTrajectoryWriter, spec: TransitionSpec) -> None:
        """Makes columns of the history of a writer, which it has after its first row."""
        self._writer, self._spec = writer, spec
        self._cached: dict[tuple[int, int, int], list[Any]] = {}

    def between(self, start: int, end: int, action: int) -> list[Any]:
        """Returns the columns of a transition whose numbers are in the newest row.

        Args:
          start: Row of the newest frames of the observation.
          end: Row of the newest frames of the next observation.
          action: Row of the action.
        """
        key = (start, end, action)
        columns = self._cached.get(key)
        if columns is None:
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            columns = self._cached[key] = self._made(start, end, action)
        return columns

    def _made(self, start: int, end: int, action: int) -> list[Any]:
        history = self._writer.history
        columns = [
            *(leaf.column(history, start) for leaf in self._spec.leaves),
            *(leaf.column(history, end) for leaf in self._spec.leaves),
            history["action"][action],
            *(history[name][-1] for name in arrays.NUMBERS[1:]),
        ]
        order = self._spec.order
        return columns if order is None else [columns[at] for at in order]
