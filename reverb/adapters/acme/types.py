# SPDX-License-Identifier: Apache-2.0
"""Values that adders write and learners read."""

from typing import Any, NamedTuple

__all__ = ["Transition"]


class Transition(NamedTuple):
    """A transition over one step or several; field by field the same as `acme.types.Transition`.

    Attributes:
      observation: Nest of arrays `[...]`, what the agent saw.
      action: Nest of arrays `[...]`, what it did.
      reward: Nest of arrays `[...]`, summed and discounted over the steps.
      discount: Nest of arrays `[...]`, the product of the steps' discounts.
      next_observation: Like `observation`, what the agent saw after the last of the steps.
      extras: Nest of arrays `[...]`, what else the agent wants to remember of the first step.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    next_observation: Any
    extras: Any = ()
