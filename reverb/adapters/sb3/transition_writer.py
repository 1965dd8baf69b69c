# SPDX-License-Identifier: Apache-2.0
"""Writes the steps of several environments as rows, and makes transitions of them.

A row has one step: the observation after it (only the newest frame of a stack), the action, and the
numbers of the transition that the step completes. Before the first step of an episode come rows
with its first observation. So each observation is one cell, no matter how many transitions refer to
it, and the columns of a transition are indices of rows, counted from the newest one.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import reverb
from reverb.adapters.sb3 import arrays
from reverb.adapters.sb3.cell_rows import CellRows
from reverb.adapters.sb3.leaf import Leaf
from reverb.adapters.sb3.step import Step

__all__ = ["MAX_TOGETHER", "TransitionWriter"]

Array = np.ndarray[Any, Any]

# Maximum number of unconfirmed transitions.
_MAX_UNCONFIRMED = 1_000
# Number of steps whose transitions are made together, if no other program reads the table.
MAX_TOGETHER = 16
# Limit of cached columns: stacks of frames that do not continue have too many patterns.
_MAX_PATTERNS = 1_000


class TransitionWriter:
    """Makes transitions of `n_steps` steps, or fewer at the end of an episode.

    Attributes:
      num_steps: Number of calls of `add` so far. The column `place` follows from it, see `arrays`.
      has_items: Whether a transition was made.
    """

    def __init__(
        self,
        client: reverb.Client,
        table: str,
        priority: float,
        leaves: Sequence[Leaf],
        order: Sequence[int] | None,
        action: tuple[int, Any],
        num_envs: int,
        n_steps: int,
        gamma: float,
        num_steps: int,
        max_together: int,
    ) -> None:
        """Makes a writer.

        Args:
          client: Client of the server.
          table: Name of the table.
          priority: Priority of new transitions.
          leaves: Leaves of an observation.
          order: Numbers of the columns of a transition in the order of the table; `None`: the
            observations, the next ones, and `arrays.NUMBERS`.
          action: Number of dimensions of an action, and its dtype.
          num_envs: Number of environments, `N`.
          n_steps: Number of steps of a transition.
          gamma: Discount of the rewards of several steps.
          num_steps: Initial value of the attribute.
          max_together: Number of steps whose transitions are made together. After `flush`, all are
            in the table.
        """
        self.num_steps = num_steps
        self.has_items = False
        self._table, self._leaves, self._order = table, leaves, order
        self._n_steps = n_steps
        num_frames = [leaf.num_frames for leaf in leaves]
        self._all_leaves = range(len(leaves))
        self._stacks = [i for i, num in enumerate(num_frames) if num > 1]
        # The rows of all steps of a transition, with the frames of both observations.
        num_rows = (2 + sum(num_frames)) * (n_steps + 2) + max_together
        self._writer = client.batched_trajectory_writer(num_envs, num_rows)
        # Number of newest steps whose completed transitions were postponed; each was one row of all
        # environments. Making transitions takes longer than a row, and wakes a thread.
        self._num_postponed, self._max_together = 0, max_together
        # Then transitions at the end of an episode, too, wait for the next ones or `flush`.
        self._may_keep = max_together > 1
        # An upper bound. The exact number would take a call.
        self._num_unconfirmed = 0
        self._envs, self._offsets = np.arange(num_envs), np.arange(n_steps)
        self._all = np.ones(num_envs, np.bool_)
        self._priorities = np.full(num_envs, priority, np.float64)
        self._discounts = (gamma ** np.arange(n_steps + 1)).astype(np.float32)
        # The numbers of a transition in the next row. `done` and `end` are 0 between two calls; the
        # others are set for each row.
        self._numbers: dict[str, Array] = {
            "reward": np.zeros((num_envs, n_steps), np.float32),
            "done": np.zeros(num_envs, np.float32),
            "discount": np.full(num_envs, gamma**n_steps, np.float32),
            "place": np.zeros(num_envs, np.int64),
            "end": np.zeros(num_envs, np.uint8),
        }
        # A ring of the latest steps: those without a transition yet, the last one, with which the
        # next is compared, and the next, which may be refused.
        self._rewards = np.zeros((n_steps + 1, num_envs), np.float32)
        self._steps = [Step(leaves, action, rewards, self._numbers) for rewards in self._rewards]
        # The environments in which the next step begins an episode, and whether there is one.
        self._is_start = np.ones(num_envs, np.bool_)
        self._has_starts = True
        # Number of newest steps without a transition yet; always 0 with `n_steps` of 1. The second
        # one is its value, as bytes, when all environments complete a transition.
        self._age = np.zeros(num_envs, np.int64)
        self._complete_age = np.full(num_envs, n_steps, np.int64).tobytes()
        self._cell_rows = CellRows(num_frames, num_envs, n_steps + 1)
        self._is_regular = True
        # Cached columns of transitions, by the rows of their cells.
        self._columns: dict[Any, list[Any]] = {}

    # ---- Calls of the buffer ---------------------------------------------------------------------

    def add(
        self,
        observations: Sequence[Any],
        next_observations: Sequence[Any],
        action: Any,
        reward: Any,
        done: Any,
        timeout: Any,
    ) -> None:
        """Adds a step of each environment; see `Step.store` for the arguments.

        Blocks while 1,000 transitions are not confirmed.

        Args:
          observations: `[N, ...]` for each leaf.
          next_observations: `[N, ...]` for each leaf.
          action: `[N, ...]`.
          reward: `[N]`.
          done: `[N]`.
          timeout: Whether a time limit ended the episodes, `[N]`; `None`: in no environment.

        Raises:
          ValueError: If a shape differs. Nothing was added.
        """
        at = self.num_steps % len(self._steps)
        step, last = self._steps[at], self._steps[at - 1]
        step.store(self._leaves, observations, next_observations, action, reward, done)
        ended = self._ends(step, timeout)
        begins = None
        if self._has_starts or not step.continues(last):
            self._create_postponed()
            begins = self._is_start | ~step.where_it_continues(last)
            # A new episode may have begun without `done`.
            self._end(begins & ~self._is_start)
        if ended is not None:
            self._numbers["end"][...] = arrays.DONE * ended[0] + arrays.TIMEOUT * ended[1]
            self._numbers["done"][...] = ended[0] & ~ended[1]
        self._append(step, at, begins)
        if ended is None and self._is_regular and self._is_complete():
            self._postpone()
        else:
            where = self._all if self._n_steps == 1 else self._age == self._n_steps
            postponed = self._take_postponed(1)
            self._create(where, postponed=postponed, keep=ended is not None and self._may_keep)
        if self._has_starts:
            self._is_start[...] = self._has_starts = False
        if ended is not None:
            self._end(ended[0] | ended[1])
            self._numbers["end"][...] = self._numbers["done"][...] = 0
        if not self._is_regular:
            self._is_regular = self._cell_rows.are_regular(
                self.num_steps, self._age, self._is_start
            )
        if self._num_unconfirmed > _MAX_UNCONFIRMED:
            self._flush(_MAX_UNCONFIRMED // 2)

    def end_episodes(self) -> None:
        """Ends all episodes: the next step begins new ones."""
        self._end(~self._is_start)

    def flush(self) -> None:
        """Blocks until all transitions are in the table."""
        # Kept, because the flush sends them without another thread.
        self._queue(self._take_postponed(), keep=True)
        if self._num_unconfirmed:
            self._flush(0)

    def close(self, flush: bool) -> None:
        """Closes the writer, after a flush as that of the writer's `close`, or at once."""
        try:
            if flush:
                self._queue(self._take_postponed(), keep=True)
        finally:
            self._writer.close(flush=flush)

    def open_steps(self) -> tuple[Any, ...]:
        """Returns the steps without a transition yet, for `restore`."""
        oldest = self.num_steps - int(self._age.max())
        steps = [self._steps[at % len(self._steps)] for at in range(oldest, self.num_steps)]
        return self._age.copy(), [step.state() for step in steps]

    def restore(self, open_steps: tuple[Any, ...]) -> None:
        """Continues with the steps that another writer returned from `open_steps`."""
        ages, states = open_steps
        self.num_steps -= len(states)
        for age, state in zip(range(len(states), 0, -1), states, strict=True):
            at = self.num_steps % len(self._steps)
            self._steps[at].set_state(state)
            self._append(self._steps[at], at, ages == age, ages >= age)
        self._is_start = ages == 0

    # ---- Episodes --------------------------------------------------------------------------------

    def _ends(self, step: Step, timeout: Any) -> tuple[Array, Array] | None:
        """The episodes that end with a step, and those that a time limit ends; `None`: none."""
        if timeout is None and not np.count_nonzero(step.done):  # Faster than `any()`.
            return None
        is_timeout = np.zeros(len(self._envs), np.bool_)
        if timeout is not None:
            is_timeout[...] = np.asarray(timeout)
        return step.done != 0, is_timeout

    def _end(self, where: Array) -> None:
        """Makes the transitions of all pending steps, and ends the episodes.

        Args:
          where: The environments, booleans `[N]`.
        """
        if not np.count_nonzero(where):
            return
        self._create_postponed()
        rows_after = 0
        while np.count_nonzero(left := where & (self._age > 0)):
            self._set_numbers()
            self._append_row(self._numbers, (), left)
            rows_after += 1
            self._create(left, rows_after, keep=self._may_keep)
        self._writer.end_episode(where)
        self._is_start[where] = self._has_starts = True

    # ---- Rows ------------------------------------------------------------------------------------

    def _append(
        self, step: Step, at: int, begins: Array | None, where: Array | None = None
    ) -> None:
        """Appends the rows of a step.

        Args:
          step: The step.
          at: Position of the step in the ring.
          begins: The environments in which it begins an episode; `None`: none.
          where: The environments that make the step; `None`: all.
        """
        if begins is not None:
            self._append_first(step, begins)
        if self._stacks:
            self._append_other_frames(step, at, where)
        if not self._is_regular:
            self._cell_rows.append_action(at)
        self.num_steps += 1
        if self._n_steps > 1:
            self._age += 1 if where is None else where
        self._set_numbers()
        self._append_row(step.row, self._all_leaves, where)

    def _append_first(self, step: Step, where: Array) -> None:
        """Appends first observations: a row for each frame, the newest ones of all leaves last."""
        for back in range(max(leaf.num_frames for leaf in self._leaves), 0, -1):
            chosen = [i for i, leaf in enumerate(self._leaves) if leaf.num_frames >= back]
            row = {self._leaves[i].name: step.starts[i].frames[:, -back] for i in chosen}
            self._append_row(row, chosen, where)

    def _append_other_frames(self, step: Step, at: int, where: Array | None) -> None:
        """Appends all frames but the newest, where a stack does not continue the last one."""
        differs = {}
        for i in self._stacks:
            differs[i] = (step.starts[i].words[:, 1:] != step.ends[i].words[:, :-1]).any(
                axis=(1, 2)
            )
            if where is not None:
                differs[i] &= where
        differs = {i: of for i, of in differs.items() if np.count_nonzero(of)}
        if differs and self._is_regular:
            self._create_postponed()
            self._is_regular = False
            self._cell_rows.begin(self.num_steps)
        if not self._is_regular:
            self._cell_rows.begin_step(at)
        for i, of in differs.items():
            for frame in range(self._leaves[i].num_frames - 1):
                row = {self._leaves[i].name: step.ends[i].frames[:, frame]}
                self._append_row(row, [i], of)

    def _append_row(self, row: dict[str, Any], leaves: Iterable[int], where: Array | None) -> None:
        """Appends a row that has a frame of these leaves."""
        self._writer.append(row, where=where)
        if not self._is_regular:
            self._cell_rows.append(leaves, where)

    def _set_numbers(self) -> None:
        """Sets the numbers of the transitions of the oldest pending steps."""
        numbers = self._numbers
        if self._is_complete():
            # Nearly always all have the same number of steps, which takes a third of the time.
            oldest = self.num_steps - self._n_steps
            for i in range(self._n_steps):
                numbers["reward"][:, i] = self._rewards[(oldest + i) % len(self._steps)]
            np.add(self._envs, oldest * len(self._envs), out=numbers["place"])
            if self._n_steps > 1:
                numbers["discount"][...] = self._discounts[-1]
            return
        first = self.num_steps - self._age
        steps = first[:, None] + self._offsets
        numbers["reward"][...] = self._rewards[steps % len(self._steps), self._envs[:, None]]
        numbers["reward"][steps >= self.num_steps] = 0
        numbers["discount"][...] = self._discounts[self._age]
        numbers["place"][...] = first * len(self._envs) + self._envs

    # ---- Transitions -----------------------------------------------------------------------------

    def _is_complete(self) -> bool:
        """Whether the newest step completes a transition of `n_steps` in all environments."""
        return self._n_steps == 1 or self._age.tobytes() == self._complete_age

    def _postpone(self) -> None:
        """Postpones the transitions that the newest step completes, or makes all postponed ones."""
        self.has_items = True
        self._num_postponed += 1
        if self._n_steps > 1:
            self._age -= 1
        if self._num_postponed >= self._max_together:
            self._create_postponed()

    def _create_postponed(self) -> None:
        """Makes the transitions that were postponed."""
        self._queue(self._take_postponed())

    def _take_postponed(self, rows_after: int = 0) -> list[Any]:
        """Takes the transitions that were postponed, the oldest ones first.

        Args:
          rows_after: Number of rows after the row of the newest of these steps.
        """
        ages = range(self._num_postponed - 1 + rows_after, rows_after - 1, -1)
        self._num_postponed = 0
        return [
            (self._regular_columns(self._n_steps, age, age), self._priorities, None, self._all)
            for age in ages
        ]

    def _queue(self, items: Sequence[Any], keep: bool = False) -> None:
        """Queues transitions.

        Args:
          items: See `BatchedTrajectoryWriter._create_all_items`.
          keep: Sends them later.
        """
        if items:
            created = self._writer._create_all_items(self._table, items, keep=keep)
            self._num_unconfirmed += created

    def _create(
        self,
        where: Array,
        rows_after: int = 0,
        postponed: Sequence[Any] = (),
        keep: bool = False,
    ) -> None:
        """Makes the transitions of the oldest pending steps; the newest row has their numbers.

        Args:
          where: The environments, booleans `[N]`.
          rows_after: Number of rows after the row of the newest step. 0: the transitions have
            `n_steps` steps.
          postponed: Earlier transitions, which are made with them.
          keep: Sends them later.
        """
        items = [*postponed]
        if np.count_nonzero(where):
            items += [(it, self._priorities, None, of) for it, of in self._items(where, rows_after)]
            self.has_items = True
        self._queue(items, keep)
        if self._n_steps > 1:
            self._age -= where

    def _items(self, where: Array, rows_after: int) -> Iterable[tuple[list[Any], Array]]:
        """Yields the columns of transitions, with the environments that use these columns."""
        if not self._is_regular:
            age: Any = 1 if self._n_steps == 1 else self._age
            first = (self.num_steps - age) % len(self._steps)
            rows = self._cell_rows.of_transitions(first, where)
            patterns, kinds = np.unique(rows, axis=0, return_inverse=True)
            for kind, pattern in enumerate(patterns):
                of = np.zeros_like(where)
                of[where] = kinds.ravel() == kind
                yield self._columns_in(tuple(pattern.tolist())), of
        elif rows_after == 0:
            yield self._regular_columns(self._n_steps, 0), where
        else:
            ages = self._age[where]
            for age in range(int(ages.min()), int(ages.max()) + 1):
                of = where & (self._age == age)
                if np.count_nonzero(of):
                    yield self._regular_columns(age, rows_after), of

    def _regular_columns(self, age: int, rows_after: int, numbers_after: int = 0) -> list[Any]:
        """The columns of a transition if each step is one row.

        Args:
          age: Number of its steps.
          rows_after: Number of rows after the row of its newest step.
          numbers_after: Number of rows after the row of its numbers.
        """
        key = ("regular", age, rows_after, numbers_after)
        if key not in self._columns:
            newest = self._cell_rows.regular - rows_after
            rows = (*(newest - age), *newest, -age - rows_after)
            self._columns[key] = self._columns_in(tuple(map(int, rows)), numbers_after)
        return self._columns[key]

    def _columns_in(self, rows: tuple[int, ...], numbers_after: int = 0) -> list[Any]:
        """The columns of a transition.

        Args:
          rows: Rows of its cells: the observation, the next one and the action.
          numbers_after: Number of rows after the row of its numbers.
        """
        key = (rows, numbers_after)
        if key not in self._columns:
            if len(self._columns) >= _MAX_PATTERNS:
                self._columns.clear()
            history, num_cells = self._writer.history, len(rows) // 2
            columns = [
                *self._observation(rows[:num_cells]),
                *self._observation(rows[num_cells:-1]),
                history["action"][rows[-1]],
                *(history[name][-1 - numbers_after] for name in arrays.NUMBERS[1:]),
            ]
            if self._order is not None:
                columns = [columns[at] for at in self._order]
            self._columns[key] = columns
        return self._columns[key]

    def _observation(self, rows: Sequence[int]) -> list[Any]:
        """The columns of an observation whose cells are in these rows."""
        columns, cells = [], iter(rows)
        for leaf in self._leaves:
            own = [next(cells) for _ in range(leaf.num_frames)]
            columns.append(leaf.column(self._writer.history, own))
        return columns

    def _flush(self, num_unconfirmed: int) -> None:
        self._writer.flush(num_unconfirmed)
        self._num_unconfirmed = num_unconfirmed
