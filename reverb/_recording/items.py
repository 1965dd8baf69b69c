# SPDX-License-Identifier: Apache-2.0
"""The kinds of items of a recorder: transitions, sequences or episodes."""

import dataclasses
from typing import Literal

from reverb._recording.checks import check_at_least, check_choice, check_discount

__all__ = ["Episodes", "Items", "Sequences", "Transitions"]


@dataclasses.dataclass(frozen=True)
class Transitions:
    """One item for each step, for learners that bootstrap from values.

    Step `s` makes an item over `k` steps: `n_step`, or fewer if the episode ends before, by a
    termination or a truncation. Its columns have no time dimension:

    * `observation` and `action` of step `s`;
    * `reward`: `sum(discount**i * r[s + i] for i in range(k))`, float32;
    * `next_observation`: the observation after the last of the `k` steps;
    * `discount`: `discount**k * (1 - terminated)`, float32. Learners bootstrap from a truncated
      episode, so `reward + discount * value(next_observation)` is right for all items;
    * `terminated` and `truncated` of the last of the `k` steps.

    Args:
      n_step: Largest number of steps, `n`.
      discount: Factor by which a reward counts less with each step, `gamma`, in [0, 1].

    Example:
      >>> from reverb import datasets
      >>> datasets.Transitions(n_step=3).discount
      0.99
    """

    n_step: int = 1
    discount: float = 0.99

    def __post_init__(self) -> None:
        check_at_least(1, "n_step", self.n_step)
        check_discount(self.discount)


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Sequences of `burn_in + length` steps of one episode, `T`.

    The columns are those of `Transitions` of one step, with a time dimension: `observation` is
    `[T, ...]`, and row `t` of all columns is one step. `next_observation` refers to the same cells
    as `observation`, one step later, and takes no memory in the table.

    A sequence begins at steps 0, `stride`, `2 * stride`, ... of an episode. If the last one does
    not end with the episode, one more sequence has the last `T` steps, so that the end of every
    episode is in an item.

    Args:
      length: Number of steps to learn from.
      stride: Number of steps between the starts of two sequences; `None`: `length`.
      burn_in: Number of steps before these, to warm up a recurrent state. The first `burn_in`
        steps of an episode are in no other part of a sequence; see "R2D2 with padding" in the
        cookbook.
      discount: As in `Transitions`.
      short_episodes: Treatment of an episode of fewer than `T` steps. "drop": it is in no item, and
        `num_dropped_episodes` counts it; the first one is logged. "keep": it becomes a shorter
        item, so that batches are ragged.

    Example:
      >>> from reverb import datasets
      >>> datasets.Sequences(length=80, stride=40, burn_in=40).num_steps
      120
    """

    length: int
    stride: int | None = None
    burn_in: int = 0
    discount: float = 0.99
    short_episodes: Literal["drop", "keep"] = "drop"

    def __post_init__(self) -> None:
        check_at_least(1, "length", self.length)
        if self.stride is not None:
            check_at_least(1, "stride", self.stride)
        check_at_least(0, "burn_in", self.burn_in)
        check_discount(self.discount)
        check_choice("short_episodes", self.short_episodes, ("drop", "keep"))

    @property
    def num_steps(self) -> int:
        """Number of steps of a sequence, `T`."""
        return self.burn_in + self.length


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Whole episodes.

    The columns are those of `Sequences`; `T` is the number of steps of the episode. An episode that
    the program interrupts by `reset` or `close` is incomplete: it is in no item, and
    `num_dropped_episodes` counts it.

    Args:
      max_length: Largest number of steps of an episode.
      discount: As in `Transitions`.
      long_episodes: Treatment of a longer episode. "raise": `step` raises an error and makes no
        step. "drop": the episode is in no item, and `num_dropped_episodes` counts it.

    Example:
      >>> from reverb import datasets
      >>> datasets.Episodes(max_length=500).long_episodes
      'raise'
    """

    max_length: int
    discount: float = 0.99
    long_episodes: str = "raise"

    def __post_init__(self) -> None:
        check_at_least(1, "max_length", self.max_length)
        check_discount(self.discount)
        check_choice("long_episodes", self.long_episodes, ("raise", "drop"))


Items = Transitions | Sequences | Episodes

# The public import path; `reverb.adapters.gymnasium` has them, too.
for _kind in (Transitions, Sequences, Episodes):
    _kind.__module__ = "reverb.datasets"
