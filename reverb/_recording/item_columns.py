# SPDX-License-Identifier: Apache-2.0
"""The columns of items, as indices into the history of each environment.

A row of the history has one step: its action, reward and flags, and the observation after it. In
the first row of an episode, only the first observation is ever part of an item. So each observation
is one cell, no matter how many items refer to it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tree

from reverb._recording.nests import map_nest, without

__all__ = ["COLUMNS", "ItemColumns"]

# The columns of all items; those of `extras` and `keep_infos` are added.
COLUMNS = (
    "observation",
    "action",
    "reward",
    "discount",
    "next_observation",
    "terminated",
    "truncated",
)

Index = int | slice


class ItemColumns:
    """Makes the columns of items over a history, a dict with a nest for each column.

    `extras` are columns with values of a step's action, `infos` of its outcome; items lack those
    at the paths `left_out`. Without `frame_stack` observations are not stacked.

    Attributes:
      paths: Paths of the columns, as in `tree.flatten_with_path`.
    """

    def __init__(
        self,
        history: Mapping[str, Any],
        frame_stack: int | None,
        extras: Sequence[str],
        infos: Sequence[str],
        left_out: Collection[str] = (),
    ) -> None:
        self._history = history
        self._frames_before = 0 if frame_stack is None else frame_stack - 1
        self._is_stacked = frame_stack is not None
        self._extras = extras
        self._infos = infos
        self._left_out = left_out
        self.paths = [path for path, _ in tree.flatten_with_path(self._nest(-1, -1, -1, -1, -1))]
        # Columns are indices that do not change, so each list is made once.
        self._made: dict[tuple[Any, ...], list[Any]] = {}

    def transition(self, num_steps: int) -> list[Any]:
        """Columns of the transition of the newest steps."""
        return self._transition(num_steps, 0, -1)

    def short_transition(self, num_steps: int, n_step: int) -> list[Any]:
        """Columns of a transition of fewer than `n_step` steps at the end of an episode.

        After the episode come `n_step - 1` rows with only the sums over `n_step - 1`, ... 2, 1
        steps.
        """
        return self._transition(num_steps, n_step - 1, -num_steps)

    def sequence(self, num_steps: int) -> list[Any]:
        """Columns of the newest steps."""
        key = ("sequence", num_steps)
        if key not in self._made:
            before = self._frames_before
            rows = slice(-num_steps, None)
            frames = slice(-num_steps - 1 - before, -1), slice(-num_steps - before, None)
            self._made[key] = self._columns(*frames, rows, rows, rows)
        return self._made[key]

    def episode(self) -> list[Any]:
        """Columns of the whole history."""
        key = ("episode",)
        if key not in self._made:
            rows = slice(1, None)
            self._made[key] = self._columns(slice(None, -1), rows, rows, rows, rows)
        return self._made[key]

    def _transition(self, num_steps: int, num_rows_after: int, sums: int) -> list[Any]:
        """Columns of a transition.

        `num_rows_after` is the number of rows after the last step, `sums` the row with the sums.
        """
        key = ("transition", num_steps, num_rows_after, sums)
        if key not in self._made:
            last = -1 - num_rows_after
            frames = self._frames(last - num_steps), self._frames(last)
            self._made[key] = self._columns(*frames, last - num_steps + 1, last, sums)
        return self._made[key]

    def _frames(self, last: int) -> Index:
        return slice(last - self._frames_before, last + 1 or None) if self._is_stacked else last

    def _columns(self, *indices: Index) -> list[Any]:
        return tree.flatten(self._nest(*indices))

    def _nest(
        self, observation: Index, next_observation: Index, action: Index, flags: Index, sums: Index
    ) -> dict[str, Any]:
        """The columns of an item by their names."""
        history = self._history
        columns = {
            "observation": self._observation(observation),
            "next_observation": self._observation(next_observation),
            "action": map_nest(lambda column: column[action], history["action"]),
            "reward": history["reward"][sums],
            "discount": history["discount"][sums],
            "terminated": history["terminated"][flags],
            "truncated": history["truncated"][flags],
        }
        columns = without(columns, self._left_out.__contains__)
        for name in self._extras:
            columns[name] = map_nest(lambda column: column[action], history[name])
        for name in self._infos:
            columns[name] = history[name][flags]
        return columns

    def _observation(self, index: Index) -> Any:
        def of(column: Any) -> Any:
            return column.select(index, pad="first") if self._is_stacked else column[index]

        return map_nest(of, self._history["observation"])
