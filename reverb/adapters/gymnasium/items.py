# SPDX-License-Identifier: Apache-2.0
"""What the items of a recorder are: transitions, sequences or episodes."""

import dataclasses

from reverb.adapters.gymnasium.checks import check_at_least, check_choice, check_discount

__all__ = ["Episodes", "Items", "Sequences", "Transitions"]


@dataclasses.dataclass(frozen=True)
class Transitions:
    """One item for each step: what a learner of values bootstraps from.

    Step `s` makes an item over `k` steps: `n_step`, or fewer where the episode ends before, at a
    termination and at a truncation alike. Its columns have no time dimension:

    * `observation` and `action` of step `s`;
    * `reward`: `sum(discount**i * r[s + i] for i in range(k))`, float32;
    * `next_observation`: what the last of the `k` steps led to;
    * `discount`: `discount**k * (1 - terminated)`, float32. A truncated episode is bootstrapped
      from, so `reward + discount * value(next_observation)` is right for all items;
    * `terminated` and `truncated` of the last of the `k` steps.

    Args:
      n_step: Largest number of steps, `n`.
      discount: Factor by which a reward counts less with each step, `gamma`, in [0, 1].

    Example:
      >>> from reverb.adapters import gymnasium
      >>> gymnasium.Transitions(n_step=3).discount
      0.99
    """

    n_step: int = 1
    discount: float = 0.99

    def __post_init__(self) -> None:
        check_at_least(1, "n_step", self.n_step)
        check_discount(self.discount)


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Windows of `burn_in + length` steps of one episode, `T`.

    The columns are those of `Transitions` of one step, with a time dimension: `observation` is
    `[T, ...]`, and row `t` of all columns is one step. `next_observation` refers to the same cells
    as `observation`, one step later, and takes no room in the table.

    A window begins at steps 0, `stride`, `2 * stride`, ... of an episode. If the last one does not
    end with the episode, one more window has the last `T` steps, so that every end is in an item.

    Args:
      length: Number of steps to learn from.
      stride: Number of steps between the starts of two windows; `None`: `length`.
      burn_in: Number of steps before those, to warm up a recurrent state with.
      discount: As in `Transitions`.
      short_episodes: What becomes of an episode of fewer than `T` steps. "drop": it is in no item,
        and `num_dropped_episodes` counts it. "keep": it is an item of as many steps as it has, so
        that batches are ragged.

    Example:
      >>> from reverb.adapters import gymnasium
      >>> gymnasium.Sequences(length=80, stride=40, burn_in=40).num_steps
      120
    """

    length: int
    stride: int | None = None
    burn_in: int = 0
    discount: float = 0.99
    short_episodes: str = "drop"

    def __post_init__(self) -> None:
        check_at_least(1, "length", self.length)
        if self.stride is not None:
            check_at_least(1, "stride", self.stride)
        check_at_least(0, "burn_in", self.burn_in)
        check_discount(self.discount)
        check_choice("short_episodes", self.short_episodes, ("drop", "keep"))

    @property
    def num_steps(self) -> int:
        """Number of steps of a window, `T`."""
        return self.burn_in + self.length


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Whole episodes.

    The columns are those of `Sequences`; `T` is the number of steps of the episode. An episode that
    the program interrupts with a `reset` or a `close` is not whole: it is in no item, and
    `num_dropped_episodes` counts it.

    Args:
      max_length: Largest number of steps of an episode.
      discount: As in `Transitions`.
      long_episodes: What becomes of a longer episode. "raise": `step` raises an error
        and makes no step. "drop": the episode is in no item, and `num_dropped_episodes` counts it.

    Example:
      >>> from reverb.adapters import gymnasium
      >>> gymnasium.Episodes(max_length=500).long_episodes
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
