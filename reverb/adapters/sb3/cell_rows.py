# SPDX-License-Identifier: Apache-2.0
"""Finds the rows of observations' frames after a stack that did not continue the last one.

As long as every stack continues the last one, a step is one row, and all rows are known. Otherwise
frames are written again, in additional rows.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

__all__ = ["CellRows"]

Array = np.ndarray[Any, Any]


class CellRows:
    """The rows of the latest steps of `N` environments.

    Attributes:
      regular: The row of each frame of each leaf, relative to the newest row, while every step is
        one row; int64 `[K]`.
    """

    def __init__(self, num_frames: Sequence[int], num_envs: int, num_steps: int) -> None:
        """Starts without steps.

        Args:
          num_frames: Number of frames of each leaf.
          num_envs: Number of environments.
          num_steps: Number of latest steps whose rows are kept.
        """
        ends = np.cumsum(num_frames).tolist()
        self._cells = [slice(end - num, end) for num, end in zip(num_frames, ends, strict=True)]
        self.regular = np.concatenate([np.arange(-num, 0) for num in num_frames])
        self._envs = np.arange(num_envs)
        # Number of rows so far; only differences between such numbers matter.
        self._num_rows = np.zeros(num_envs, np.int64)
        self._newest = np.zeros((num_envs, ends[-1]), np.int64)
        self._starts = np.zeros((num_steps, num_envs, ends[-1]), np.int64)
        self._actions = np.zeros((num_steps, num_envs), np.int64)

    def begin(self, num_steps: int) -> None:
        """Starts after steps in which every stack continued the last one.

        Args:
          num_steps: Number of steps before the next one.
        """
        self._num_rows[...] = 0
        self._newest[...] = self.regular
        for back in range(1, len(self._starts)):
            at = (num_steps - back) % len(self._starts)
            self._starts[at], self._actions[at] = self.regular - back, -back

    def begin_step(self, at: int) -> None:
        """Records that a step starts from the newest observations."""
        self._starts[at] = self._newest

    def append_action(self, at: int) -> None:
        """Records that the next row has the action of this step."""
        self._actions[at] = self._num_rows

    def append(self, leaves: Iterable[int], where: Array | None) -> None:
        """Records that a row was appended.

        Args:
          leaves: The leaves with a frame in this row.
          where: The environments; `None`: all.
        """
        selected = slice(None) if where is None else where
        for leaf in leaves:
            newest = self._newest[:, self._cells[leaf]]
            newest[selected, :-1] = newest[selected, 1:]
            newest[selected, -1] = self._num_rows[selected]
        self._num_rows += 1 if where is None else where

    def of_transitions(self, first: Array, where: Array) -> Array:
        """Returns the rows of transitions to the newest observations, counted from the newest row.

        Args:
          first: Position of the first step of each environment, `[N]`.
          where: The environments, booleans `[N]`.

        Returns:
          int64 `[M, K + K + 1]`: rows of the observation, of the next one and of the action.
        """
        starts, actions = self._starts[first, self._envs], self._actions[first, self._envs]
        rows = np.concatenate((starts, self._newest, actions[:, None]), axis=1)
        return (rows - self._num_rows[:, None])[where]

    def are_regular(self, num_steps: int, age: Array, is_start: Array) -> bool:
        """Whether all needed rows are the same as if each step were one row.

        Args:
          num_steps: Number of steps.
          age: Number of latest steps that are needed, `[N]`.
          is_start: Environments in which no step is needed, `[N]`.
        """
        num_rows = self._num_rows[:, None]
        if not ((self._newest - num_rows == self.regular).all(axis=1) | is_start).all():
            return False
        for back in range(1, int(age.max()) + 1):
            at = (num_steps - back) % len(self._starts)
            is_regular = (self._starts[at] - num_rows == self.regular - back).all(axis=1)
            is_regular &= self._actions[at] - self._num_rows == -back
            if not (is_regular | (age < back)).all():
                return False
        return True
