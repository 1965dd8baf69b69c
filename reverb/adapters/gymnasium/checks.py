# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments."""

import operator
from typing import Any

import numpy as np

from reverb import errors

__all__ = ["as_row", "check_at_least", "check_choice", "check_discount"]


def check_at_least(limit: int, argument: str, value: Any) -> None:
    """Raises `InvalidArgumentError` for an integer below the limit, `TypeError` for other types."""
    if operator.index(value) < limit:
        raise errors.InvalidArgumentError(f"{argument} must be at least {limit}, got {value}")


def check_discount(discount: float) -> None:
    """Raises `InvalidArgumentError` unless the discount is in [0, 1]."""
    if not 0.0 <= discount <= 1.0:
        raise errors.InvalidArgumentError(f"discount must be in [0, 1], got {discount}")


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises `InvalidArgumentError` unless the value is one of the choices."""
    if value not in choices:
        names = " or ".join(f'"{choice}"' for choice in choices)
        raise errors.InvalidArgumentError(f"{argument} must be {names}, got {value!r}")


def as_row(name: str, value: Any, num_envs: int) -> np.ndarray:
    """Returns numbers of a step, one for each environment, `[B]`.

    Args:
      name: Name of the value in errors.
      value: The numbers; for one environment, a number without a dimension is allowed too.
      num_envs: Number of environments, `B`.

    Raises:
      InvalidArgumentError: If `value` has another shape, or has no numbers.
    """
    array = np.asarray(value)
    if array.shape == (num_envs,) and array.dtype.kind in "biuf":
        return array
    if num_envs == 1 and array.shape == () and array.dtype.kind in "biuf":
        return array.reshape(1)
    shapes = "a number or an array of shape [1]" if num_envs == 1 else f"of shape [{num_envs}]"
    raise errors.InvalidArgumentError(
        f"{name} of a step must be {shapes}, got dtype {array.dtype} and shape "
        f"{list(array.shape)}; convert it in a wrapper below the recorder"
    )
