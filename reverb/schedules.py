# SPDX-License-Identifier: Apache-2.0
"""Schedules: numbers that depend on the step of training, such as `beta` of importance weights.

Example:
  >>> beta = reverb.schedules.linear(0.4, 1.0, steps=100_000)
  >>> beta(0), beta(50_000), beta(200_000)
  (0.4, 0.7, 1.0)
"""

import dataclasses
import math
from collections.abc import Callable

from reverb.errors import InvalidArgumentError

__all__ = ["constant", "exponential", "linear"]


@dataclasses.dataclass(frozen=True)
class _Schedule:
    """A value that changes from step 0 to the last step."""

    start: float
    end: float
    steps: int
    between: Callable[[float, float, float], float]

    def __call__(self, step: float) -> float:
        """Returns the value at a step, counted from 0; after the last one it stays."""
        if step <= 0:
            return self.start
        if step >= self.steps:
            return self.end
        return self.between(self.start, self.end, step / self.steps)


def linear(start: float, end: float, steps: int) -> Callable[[float], float]:
    """Makes a schedule that goes from `start` to `end` in a straight line, and stays there.

    Args:
      start: The value at step 0.
      end: The value from step `steps` on.
      steps: Number of steps, at least 1.

    Returns:
      A function of the step, counted from 0.

    Raises:
      InvalidArgumentError: If `steps` is below 1, or if a value is not finite.
    """
    _check(start, end, steps)
    return _Schedule(start, end, steps, _in_a_line)


def exponential(start: float, end: float, steps: int) -> Callable[[float], float]:
    """Makes a schedule that changes by the same factor with every step, and stays at `end`.

    Args:
      start: The value at step 0, above 0.
      end: The value from step `steps` on, above 0.
      steps: Number of steps, at least 1.

    Returns:
      A function of the step, counted from 0.

    Raises:
      InvalidArgumentError: If `steps` is below 1, or if a value is not finite and above 0.
    """
    _check(start, end, steps)
    for name, value in (("start", start), ("end", end)):
        if value <= 0:
            raise InvalidArgumentError(f"{name} must be above 0, got {value!r}")
    return _Schedule(start, end, steps, _by_a_factor)


def constant(value: float) -> Callable[[float], float]:
    """Makes a schedule that is the same at every step.

    Raises:
      InvalidArgumentError: If the value is not finite.
    """
    return linear(value, value, 1)


def _in_a_line(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


def _by_a_factor(start: float, end: float, part: float) -> float:
    return start * (end / start) ** part


def _check(start: float, end: float, steps: int) -> None:
    for name, value in (("start", start), ("end", end)):
        if not math.isfinite(value):
            raise InvalidArgumentError(f"{name} must be finite, got {value!r}")
    if steps < 1:
        raise InvalidArgumentError(f"steps must be at least 1, got {steps!r}")
