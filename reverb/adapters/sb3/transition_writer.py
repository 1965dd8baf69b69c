# SPDX-License-Identifier: Apache-2.0
"""Writes the steps of several environments as rows, and makes transitions of them.

A row has one step: the observation after it (only the newest frame of a stack), the action, and the
numbers of the transition that the step completes. Before the first step of an episode come rows
with its first observation. So each observation is one cell, no matter how many transitions refer to
it, and the columns of a transition are indices of rows, counted from the newest one.

The latest rows always have all frames of the newest observation. Where a stack does not continue
the last one, the older frames of all environments are written again, in rows before that of the
step.
"""

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import reverb
from reverb.adapters.sb3 import arrays
from reverb.adapters.sb3.leaf import Values
from reverb.adapters.sb3.step import Step, TransitionSpec
from reverb.adapters.sb3.transition_columns import TransitionColumns

__all__ = ["STEPS_PER_SEND", "TransitionWriter"]

Array = np.ndarray[Any, Any]

# Maximum number of unconfirmed transitions.
_MAX_UNCONFIRMED = 1_000
# Number of steps whose transitions are sent together, if no other program reads the table. Waking
# the task that sends them takes longer than a row.
STEPS_PER_SEND = 16


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
        spec: TransitionSpec,
        priority: float,
        num_steps: int,
        steps_per_send: int,
    ) -> None:
        """Makes a writer.

        Args:
          client: Client of the server.
          table: Name of the table.
          spec: What a transition consists of.
          priority: Priority of new transitions.
          num_steps: Initial value of the attribute.
          steps_per_send: Number of steps whose transitions are sent together. After `flush`, all
            are in the table.
        """
        self.num_steps = num_steps
        self.has_items = False
        self._table, self._spec, self._steps_per_send = table, spec, steps_per_send
        num_envs, n_steps = spec.num_envs, spec.n_steps
        num_frames = [leaf.num_frames for leaf in spec.leaves]
        self._max_frames = max(num_frames)
        # The rows of all steps of a transition, with the frames of both observations.
        num_rows = (2 + sum(num_frames)) * (n_steps + 2)
        self._writer = client.batched_trajectory_writer(num_envs, num_rows)
        self._columns = TransitionColumns(self._writer, spec)
        # An upper bound. The exact number would take a call.
        self._num_unconfirmed = 0
        self._envs = np.arange(num_envs)
        self._priorities = np.full(num_envs, priority, np.float64)
        # The numbers of the transition of the newest `n_steps` steps. `done` and `end` are 0
        # between two calls; `reward` and `place` are set for each row.
        self._numbers: dict[str, Array] = {
            "reward": np.zeros((num_envs, n_steps), np.float32),
            "done": np.zeros(num_envs, np.float32),
            "discount": np.full(num_envs, spec.gamma**n_steps, np.float32),
            "place": np.zeros(num_envs, np.int64),
            "end": np.zeros(num_envs, np.uint8),
        }
        # A ring of the latest steps: those without a transition yet, the last one, with which the
        # next is compared, and the next, which may be refused.
        self._steps = [Step(spec, self._numbers) for _ in range(n_steps + 1)]
        # The environments in which the next step begins an episode, and the number of the first
        # step of the others' episodes.
        self._is_start = np.ones(num_envs, np.bool_)
        self._first_steps = np.zeros(num_envs, np.int64)
        # Number of rows before each of the newest `n_steps` steps, and now; without the rows that
        # only some environments have, at the beginning and the end of episodes.
        self._num_rows = collections.deque([0], maxlen=n_steps + 1)

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
        step = self._steps[self.num_steps % len(self._steps)]
        last = self._steps[self.num_steps % len(self._steps) - 1]
        step.store(self._spec.leaves, observations, next_observations, action, reward, done)
        is_timeout = None if timeout is None else _flags(timeout, len(self._envs))
        begins = None
        if np.count_nonzero(self._is_start) or not step.continues(last):
            begins = self._is_start | ~step.where_it_continues(last)
            # A new episode may have begun without `done`.
            self._end(begins & ~self._is_start)
        has_ends = is_timeout is not None or np.count_nonzero(step.done) > 0
        if has_ends:
            is_done = step.done != 0
            is_timeout = np.zeros_like(is_done) if is_timeout is None else is_timeout
            self._numbers["end"][...] = arrays.DONE * is_done + arrays.TIMEOUT * is_timeout
            self._numbers["done"][...] = is_done & ~is_timeout
        self._append(step, begins)
        oldest = self.num_steps - self._spec.n_steps
        self._create([(oldest, self._first_steps <= oldest)])
        if has_ends:
            self._end(self._numbers["end"] != 0)
            self._numbers["end"][...] = self._numbers["done"][...] = 0
        # This thread would have to send what was kept back.
        if self._num_unconfirmed > _MAX_UNCONFIRMED and not self._keeps():
            self._flush(_MAX_UNCONFIRMED // 2)

    def end_episodes(self) -> None:
        """Ends all episodes: the next step begins new ones."""
        self._end(~self._is_start)

    def flush(self) -> None:
        """Blocks until all transitions are in the table."""
        if self._num_unconfirmed:
            self._flush(0)

    def close(self, flush: bool) -> None:
        """Closes the writer, after a flush as that of the writer's `close`, or at once."""
        self._writer.close(flush=flush)

    def open_steps(self) -> tuple[Any, ...]:
        """Returns the steps without a transition yet, for `restore`."""
        ages = self.num_steps - self._first_open_steps()
        ages[self._is_start] = 0
        oldest = self.num_steps - int(ages.max())
        steps = [self._steps[at % len(self._steps)] for at in range(oldest, self.num_steps)]
        return ages, [step.state() for step in steps]

    def restore(self, open_steps: tuple[Any, ...]) -> None:
        """Continues with the steps that another writer returned from `open_steps`."""
        ages, states = open_steps
        self.num_steps -= len(states)
        for age, state in zip(range(len(states), 0, -1), states, strict=True):
            step = self._steps[self.num_steps % len(self._steps)]
            step.set_state(state)
            self._append(step, ages == age)
        self._is_start = ages == 0

    # ---- Rows ------------------------------------------------------------------------------------

    def _append(self, step: Step, begins: Array | None) -> None:
        """Appends the rows of a step.

        Args:
          step: The step.
          begins: The environments in which it begins an episode; `None`: none.
        """
        if begins is not None:
            self._append_frames(step.starts, range(self._max_frames, 0, -1), begins)
            self._first_steps[begins] = self.num_steps
            self._is_start[begins] = False
        num_rows = self._num_rows[-1] + 1
        if self._max_frames > 1 and not step.continues_stacks():
            self._append_frames(step.ends, range(self._max_frames, 1, -1), None)
            num_rows += self._max_frames - 1
        self._num_rows.append(num_rows)
        self.num_steps += 1
        rewards, num_envs = self._numbers["reward"], len(self._envs)
        if self._spec.n_steps > 1:
            rewards[:, :-1] = rewards[:, 1:]
        rewards[:, -1] = step.reward
        oldest = self.num_steps - self._spec.n_steps
        np.add(self._envs, oldest * num_envs, out=self._numbers["place"])
        self._writer.append(step.row)

    def _append_frames(
        self, values: Sequence[Values], ages: Iterable[int], where: Array | None
    ) -> None:
        """Appends a row for each of these frames of observations; 1 is the newest."""
        for age in ages:
            row = {
                leaf.name: value.frames[:, -age]
                for leaf, value in zip(self._spec.leaves, values, strict=True)
                if leaf.num_frames >= age
            }
            self._writer.append(row, where=where)

    # ---- Transitions -----------------------------------------------------------------------------

    def _first_open_steps(self) -> Array:
        """The first step of each environment that has no transition yet; int64 `[N]`."""
        return np.maximum(self._first_steps, self.num_steps - self._spec.n_steps + 1)

    def _end(self, where: Array) -> None:
        """Makes the transitions of all steps that have none yet, and ends the episodes.

        Args:
          where: The environments, booleans `[N]`.
        """
        if not np.count_nonzero(where):
            return
        first = self._first_open_steps()
        rows_after = 0
        while np.count_nonzero(left := where & (first < self.num_steps)):
            self._writer.append(self._numbers_from(first), where=left)
            rows_after += 1
            starts = np.unique(first[left]).tolist()
            self._create([(start, left & (first == start)) for start in starts], rows_after)
            first = np.minimum(first + 1, self.num_steps)
        self._writer.end_episode(where)
        self._is_start[where] = True

    def _numbers_from(self, first: Array) -> dict[str, Array]:
        """The numbers of the transitions from these steps to the newest one, `[N]`."""
        num_missing = first + self._spec.n_steps - self.num_steps
        rewards = np.pad(self._numbers["reward"], ((0, 0), (0, self._spec.n_steps)))
        columns = num_missing[:, None] + np.arange(self._spec.n_steps)
        return {
            **self._numbers,
            "reward": np.take_along_axis(rewards, columns, 1),
            "discount": (self._spec.gamma ** (self.num_steps - first)).astype(np.float32),
            "place": first * len(self._envs) + self._envs,
        }

    def _create(self, transitions: Sequence[tuple[int, Array]], rows_after: int = 0) -> None:
        """Makes transitions to the newest step; the newest row has their numbers.

        Args:
          transitions: The first step of a transition, and its environments, booleans `[N]`.
          rows_after: Number of rows after the row of the newest step.
        """
        items = []
        for first, where in transitions:
            if np.count_nonzero(where):
                age = self.num_steps - first
                newest = self._num_rows[-1] + rows_after
                columns = self._columns.between(
                    self._num_rows[-1 - age] - newest - 1,
                    -1 - rows_after,
                    self._num_rows[-age] - newest - 1,
                )
                items.append((columns, self._priorities, None, where))
        if items:
            self._num_unconfirmed += self._writer._create_all_items(
                self._table, items, keep=self._keeps()
            )
            self.has_items = True

    def _keeps(self) -> bool:
        """Whether the transitions to the newest step are sent with those of later steps."""
        return self.num_steps % self._steps_per_send != 0

    def _flush(self, num_unconfirmed: int) -> None:
        self._writer.flush(num_unconfirmed)
        self._num_unconfirmed = num_unconfirmed


def _flags(values: Any, num_envs: int) -> Array:
    """Returns booleans `[N]`.

    Raises:
      ValueError: If the shape differs.
    """
    flags = np.zeros(num_envs, np.bool_)
    flags[...] = np.asarray(values)
    return flags
