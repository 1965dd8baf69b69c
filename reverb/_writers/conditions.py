# SPDX-License-Identifier: Apache-2.0
"""Conditions of a structured writer: when it makes an item of a pattern.

Public names: `reverb.structured`.
"""

import operator
from typing import Any

import tree
from google.protobuf.message import Message

from reverb.core import protos
from reverb.errors import InvalidArgumentError


class Condition:
    """A number that the writer knows at every step. Comparing it with an int makes a condition.

    Example:
      >>> every_third_step = Condition.step_index() % 3 == 0
      >>> not_too_early = Condition.step_index() >= 10
      >>> at_the_end = Condition.is_end_episode()
    """

    def __init__(self, left: dict[str, Any], modulo: int | None = None) -> None:
        self._left = left
        self._modulo = modulo

    @classmethod
    def step_index(cls) -> "Condition":
        """Index of the current step in its episode, from 0."""
        return cls({"step_index": True})

    @classmethod
    def steps_since_applied(cls) -> "Condition":
        """Number of steps since the last item of this pattern; 1 at the first step.

        The end of an episode does not reset it.
        """
        return cls({"steps_since_applied": True})

    @classmethod
    def is_end_episode(cls) -> Any:
        """A complete condition, which holds in `end_episode` only."""
        return protos.Condition(is_end_episode=True, eq=1)

    @classmethod
    def data(cls, step_structure: object) -> Any:
        """The newest values of the columns, as a nest like a step.

        A column in a condition must have one integer or bool per step. A condition on a missing
        value does not hold.
        """
        count = len(tree.flatten(step_structure))
        return tree.unflatten_as(
            step_structure, [cls({"flat_source_index": i}) for i in range(count)]
        )

    def __mod__(self, modulo: int) -> "Condition":
        modulo = operator.index(modulo)
        if modulo < 1:
            raise InvalidArgumentError(
                f"the modulus of a condition must be at least 1, got {modulo}"
            )
        if self._modulo is not None:
            raise InvalidArgumentError("a condition can have one modulus only")
        return Condition(self._left, modulo)

    def __eq__(self, other: object) -> Any:
        return self._equals(other, inverse=False)

    def __ne__(self, other: object) -> Any:
        return self._equals(other, inverse=True)

    def __ge__(self, other: int) -> Any:
        return self._at_least(operator.index(other), inverse=False)

    def __gt__(self, other: int) -> Any:
        return self._at_least(operator.index(other) + 1, inverse=False)

    def __le__(self, other: int) -> Any:
        return self._at_least(operator.index(other) + 1, inverse=True)

    def __lt__(self, other: int) -> Any:
        return self._at_least(operator.index(other), inverse=True)

    # `==` makes a condition, so a dict could not compare keys with it.
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _equals(self, other: object, *, inverse: bool) -> Message:
        value = operator.index(other)  # pyright: ignore[reportArgumentType]
        if self._modulo is None:
            return protos.Condition(eq=value, inverse=inverse, **self._left)
        mod_eq = {"mod": self._modulo, "eq": value}
        return protos.Condition(mod_eq=mod_eq, inverse=inverse, **self._left)

    def _at_least(self, value: int, *, inverse: bool) -> Message:
        if self._modulo is not None:
            raise InvalidArgumentError(
                "a condition with a modulus can be compared with == and != only"
            )
        return protos.Condition(ge=value, inverse=inverse, **self._left)


# The public import path.
Condition.__module__ = "reverb.structured_writer"
