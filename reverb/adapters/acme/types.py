# SPDX-License-Identifier: Apache-2.0
"""Types of the data that adders write and learners read."""

from typing import Any, NamedTuple

__all__ = ["Transition"]


class Transition(NamedTuple):
    """A transition over one step or several, with the fields of `acme.types.Transition`.

    Example:
      >>> Transition(np.zeros(4), np.int32(1), 1.0, 0.99, np.ones(4)).reward
      1.0

    Attributes:
      observation: Nest of arrays `[...]`, the observation before the first step.
      action: Nest of arrays `[...]`, the action of the first step.
      reward: Nest of arrays `[...]`, the discounted sum of the steps' rewards.
      discount: Nest of arrays `[...]`, the product of the steps' discounts.
      next_observation: Nest like `observation`, the observation after the last step.
      extras: Nest of arrays `[...]`, additional data of the first step.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    next_observation: Any
    extras: Any = ()
