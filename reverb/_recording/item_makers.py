# SPDX-License-Identifier: Apache-2.0
"""Make the items that each step completes."""

import logging
from collections import deque
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reverb import errors
from reverb._recording.item_columns import ItemColumns
from reverb._recording.items import Episodes, Items, Sequences, Transitions
from reverb._recording.step_writer import NewItems, Step, StepWriter

__all__ = ["ItemMaker", "make_item_maker", "num_rows", "time_of"]

_logger = logging.getLogger("reverb")


class Writing(NamedTuple):
    """How a maker writes its items.

    Attributes:
      writer: Writes the items.
      columns: Returns the columns of items; called after the first step.
      reward_dtype: Dtype of the column `reward`.
    """

    writer: StepWriter
    columns: Callable[[], ItemColumns]
    reward_dtype: np.dtype[Any]


class ItemMaker:
    """Makes the items of all environments.

    `steps` is the number of steps in each environment's episode, the newest included, int64 `[B]`.
    """

    def __init__(self, discount: float, writing: Writing) -> None:
        self._discount = discount
        self._writer, self._columns, self._reward_dtype = writing
        self.num_dropped_episodes = 0

    def sums(self, rewards: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the columns `reward` and `discount` (float32) of the newest row, `[B]`."""
        return rewards.astype(self._reward_dtype), factor(self._discount, terminated)

    def check_next_step(self, steps: np.ndarray) -> None:
        """Raises an error if an episode would become too long."""

    def after_step(self, step: Step, steps: np.ndarray) -> None:
        """Makes the items that the newest row completes."""

    def at_end(self, step: Step, steps: np.ndarray, where: np.ndarray, interrupted: bool) -> None:
        """Makes the items that the ends of the episodes in `where`, booleans `[B]`, complete.

        `step` is the newest row; the program has ended the episodes if they are `interrupted`.
        """
        raise NotImplementedError


def num_rows(items: Items, frame_stack: int | None) -> int:
    """Returns the number of rows of a history that an item may refer to.

    Raises:
      InvalidArgumentError: If `items` has another type, or does not allow `frame_stack`.
    """
    frames_before = 0 if frame_stack is None else frame_stack - 1
    if isinstance(items, Transitions):
        return items.n_step + 1 + frames_before
    if isinstance(items, Sequences):
        return items.num_steps + 1 + frames_before
    if not isinstance(items, Episodes):
        raise errors.InvalidArgumentError(
            f"items must be Transitions, Sequences or Episodes, got {type(items).__name__}"
        )
    if frame_stack is not None:
        raise errors.InvalidArgumentError(
            f"frame_stack must be None for Episodes, got {frame_stack}: an episode stores each "
            "frame once; stack them after sampling"
        )
    return items.max_length + 1


def time_of(items: Items) -> list[int | None]:
    """Returns the dimensions of time of a column of an item; `None`: items differ in length."""
    if isinstance(items, Transitions):
        return []
    if isinstance(items, Sequences) and items.short_episodes == "drop":
        return [items.num_steps]
    return [None]


def make_item_maker(
    items: Items,
    writer: StepWriter,
    columns: Callable[[], ItemColumns],
    reward_dtype: npt.DTypeLike = np.float32,
) -> ItemMaker:
    """Returns the maker for a kind of items; it gets the columns after the first step."""
    writing = Writing(writer, columns, np.dtype(reward_dtype))
    if isinstance(items, Transitions):
        return TransitionMaker(items, writing)
    if isinstance(items, Sequences):
        return SequenceMaker(items, writing)
    return EpisodeMaker(items, writing)


class TransitionMaker(ItemMaker):
    """Makes transitions over `n` steps, and over fewer at the end of an episode."""

    def __init__(self, items: Transitions, writing: Writing) -> None:
        super().__init__(items.discount, writing)
        self._n = items.n_step
        self._powers = [items.discount**num_steps for num_steps in range(self._n + 1)]
        # The rewards of the newest steps, newest first, `[B]` each.
        self._rewards: deque[np.ndarray] = deque(maxlen=self._n)
        # The discounted sums of the newest 1, 2, ... `n` rewards.
        self._sums: list[np.ndarray] = []

    def sums(self, rewards: np.ndarray, terminated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._n == 1:
            return super().sums(rewards, terminated)
        while len(self._rewards) < self._n:
            self._rewards.append(np.zeros(len(rewards)))
        self._rewards.appendleft(np.array(rewards, np.float64))  # The program may change its own.
        self._sums = list(accumulate(self._rewards, lambda sum_, it: it + self._discount * sum_))
        return self._sum_of(self._n, terminated)

    def after_step(self, step: Step, steps: np.ndarray) -> None:
        columns = self._columns().transition(self._n)
        self._writer.create_items([NewItems(columns, steps >= self._n, step)])

    def at_end(self, step: Step, steps: np.ndarray, where: np.ndarray, interrupted: bool) -> None:
        # Transitions that the end cuts short. Their sums are in separate rows, which have nothing
        # else; all other columns refer to rows of the episode.
        items = []
        for num_steps in range(self._n - 1, 0, -1):
            reward, discount = self._sum_of(num_steps, step["terminated"])
            sums = {"reward": reward, "discount": discount}
            self._writer.append(sums, where)
            columns = self._columns().short_transition(num_steps, self._n)
            items.append(NewItems(columns, where & (steps >= num_steps), step | sums))
        self._writer.create_items(items)

    def _sum_of(self, num_steps: int, terminated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The discounted sum of the newest rewards, and the discount of the value after them."""
        reward = self._sums[num_steps - 1].astype(self._reward_dtype)
        return reward, factor(self._powers[num_steps], terminated)


class SequenceMaker(ItemMaker):
    """Makes sequences of `T` steps."""

    def __init__(self, items: Sequences, writing: Writing) -> None:
        super().__init__(items.discount, writing)
        self._num_steps = items.num_steps
        self._stride = items.length if items.stride is None else items.stride
        self._keeps_short = items.short_episodes == "keep"

    def after_step(self, step: Step, steps: np.ndarray) -> None:
        self._create(step, (steps >= self._num_steps) & self._ends_sequence(steps))

    def at_end(self, step: Step, steps: np.ndarray, where: np.ndarray, interrupted: bool) -> None:
        self._create(step, where & (steps >= self._num_steps) & ~self._ends_sequence(steps))
        short = where & (steps > 0) & (steps < self._num_steps)
        if not self._keeps_short:
            self._drop(steps[short])
            return
        items = [
            NewItems(self._columns().sequence(num_steps), short & (steps == num_steps), step)
            for num_steps in np.unique(steps[short]).tolist()
        ]
        self._writer.create_items(items)

    def _drop(self, lengths: np.ndarray) -> None:
        """Counts episodes of these lengths, which are in no item, and logs the first."""
        if len(lengths) and not self.num_dropped_episodes:
            _logger.warning(
                "an episode of %d steps is in no item, because a sequence has burn_in + length = "
                "%d steps. Such episodes are counted in num_dropped_episodes of the recorder, and "
                'not logged again; short_episodes="keep" makes shorter items of them',
                lengths[0],
                self._num_steps,
            )
        self.num_dropped_episodes += len(lengths)

    def _ends_sequence(self, steps: np.ndarray) -> np.ndarray:
        """Whether a sequence that began at a multiple of the stride ends at this step."""
        return steps % self._stride == self._num_steps % self._stride

    def _create(self, step: Step, where: np.ndarray) -> None:
        columns = self._columns().sequence(self._num_steps)
        self._writer.create_items([NewItems(columns, where, step)])


class EpisodeMaker(ItemMaker):
    """Makes items of whole episodes."""

    def __init__(self, items: Episodes, writing: Writing) -> None:
        super().__init__(items.discount, writing)
        self._max_length = items.max_length
        self._raises = items.long_episodes == "raise"

    def check_next_step(self, steps: np.ndarray) -> None:
        if self._raises and (steps >= self._max_length).any():
            raise errors.InvalidArgumentError(
                f"the episode of environment {np.argmax(steps)} has max_length = "
                f"{self._max_length} steps and has not ended. No step was made; pass a larger "
                'max_length, or long_episodes="drop"'
            )

    def at_end(self, step: Step, steps: np.ndarray, where: np.ndarray, interrupted: bool) -> None:
        ended = where & (steps > 0)
        whole = ended & (steps <= self._max_length) & (not interrupted)
        self.num_dropped_episodes += int(np.count_nonzero(ended & ~whole))
        self._writer.create_items([NewItems(self._columns().episode(), whole, step)])


def factor(power: float, terminated: np.ndarray) -> np.ndarray:
    """Returns `power * (1 - terminated)`, float32: 0 only after a termination."""
    return _power_or_zero(power).take(terminated)


@cache
def _power_or_zero(power: float) -> np.ndarray:
    return np.array([power, 0], np.float32)
