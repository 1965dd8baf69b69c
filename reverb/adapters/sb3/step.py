# SPDX-License-Identifier: Apache-2.0
"""Steps of all environments, with the dtypes and shapes of the spaces."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from reverb.adapters.sb3.leaf import Leaf

__all__ = ["Step", "TransitionSpec"]

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class TransitionSpec:
    """What the transitions of a buffer consist of.

    Attributes:
      leaves: Leaves of an observation.
      action_dim: Number of dimensions of an action.
      action_dtype: Dtype of an action.
      num_envs: Number of environments, `N`.
      n_steps: Number of steps of a transition.
      gamma: Discount of the rewards of several steps.
      order: Numbers of the columns of a transition in the order of the table; `None`: the
        observations, the next ones, and `arrays.NUMBERS`.
    """

    leaves: Sequence[Leaf]
    action_dim: int
    action_dtype: Any
    num_envs: int
    n_steps: int
    gamma: float
    order: Sequence[int] | None


class Step:
    """Memory for one step of `N` environments, which is reused.

    Attributes:
      starts: The observation before the step, for each leaf.
      ends: The observation after the step, for each leaf.
      action: `[N, action_dim]`.
      reward: float32 `[N]`.
      done: Whether the episode ended, float32 `[N]`.
      row: The row of the step.
    """

    def __init__(self, spec: TransitionSpec, numbers: dict[str, Array]) -> None:
        """Makes zeros.

        Args:
          spec: What a transition consists of.
          numbers: The other columns of `row`.
        """
        leaves, num_envs = spec.leaves, spec.num_envs
        self.starts = [leaf.values(num_envs) for leaf in leaves]
        self.ends = [leaf.values(num_envs) for leaf in leaves]
        self.action: Array = np.zeros((num_envs, spec.action_dim), spec.action_dtype)
        self.reward: Array = np.zeros(num_envs, np.float32)
        self.done: Array = np.zeros(num_envs, np.float32)
        newest = {leaf.name: end.newest for leaf, end in zip(leaves, self.ends, strict=True)}
        self.row = {"action": self.action, **newest, **numbers}

    def store(
        self,
        leaves: Sequence[Leaf],
        observations: Sequence[Any],
        next_observations: Sequence[Any],
        action: Any,
        reward: Any,
        done: Any,
    ) -> None:
        """Casts a step like Stable-Baselines3, which assigns it to the arrays of its buffers.

        Args:
          leaves: Leaves of an observation.
          observations: `[N, ...]` for each leaf, or values that can be assigned to such an array.
          next_observations: Like `observations`.
          action: `[N, ...]`.
          reward: `[N]`.
          done: `[N]`.

        Raises:
          ValueError: If a shape differs.
        """
        for leaf, values, observation in zip(leaves, self.starts, observations, strict=True):
            leaf.store(values, observation)
        for leaf, values, observation in zip(leaves, self.ends, next_observations, strict=True):
            leaf.store(values, observation)
        # Lists become arrays first: NumPy casts numbers of arrays, but refuses those of lists.
        self.action[...] = np.asarray(action).reshape(self.action.shape)
        self.reward[...] = np.asarray(reward)
        self.done[...] = np.asarray(done)

    def continues(self, last: "Step") -> bool:
        """Whether the observations before this step equal, bit by bit, those after `last`."""
        for start, end in zip(self.starts, last.ends, strict=True):
            if start.memory != end.memory:
                return False
        return True

    def where_it_continues(self, last: "Step") -> Array:
        """Does the same for each environment, booleans `[N]`."""
        found: Array = np.ones(len(self.action), np.bool_)
        for start, end in zip(self.starts, last.ends, strict=True):
            found &= (start.words == end.words).all(axis=(1, 2))
        return found

    def continues_stacks(self) -> bool:
        """Whether all stacks of frames after this step are those before it with a new frame."""
        pairs = zip(self.starts, self.ends, strict=True)
        return all(np.array_equal(it.words[:, 1:], end.words[:, :-1]) for it, end in pairs)

    def state(self) -> tuple[Any, ...]:
        """Returns copies of the arrays for transitions; see `set_state`."""
        starts = [values.array.copy() for values in self.starts]
        ends = [values.array.copy() for values in self.ends]
        return starts, ends, self.action.copy(), self.reward.copy()

    def set_state(self, state: tuple[Any, ...]) -> None:
        """Restores the result of `state`. No episode ends with this step."""
        starts, ends, action, reward = state
        stored = zip([*self.starts, *self.ends], [*starts, *ends], strict=True)
        for values, array in stored:
            values.array[...] = array
        self.action[...], self.reward[...] = action, reward
