# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that several classes take."""

import operator
from typing import Any

import numpy as np

from reverb.errors import InvalidArgumentError

__all__ = ["as_rows", "check_at_least_one", "check_not_negative", "clamped_timeout_ms"]


def check_at_least_one(argument: str, value: Any) -> int:
    """Returns the value as an int.

    Raises:
      InvalidArgumentError: If it is below 1.
      TypeError: If it is not an integer.
    """
    return _check_at_least(1, argument, value)


def check_not_negative(argument: str, value: Any) -> int:
    """Returns the value as an int.

    Raises:
      InvalidArgumentError: If it is below 0.
      TypeError: If it is not an integer.
    """
    return _check_at_least(0, argument, value)


def _check_at_least(limit: int, argument: str, value: Any) -> int:
    value = operator.index(value)
    if value < limit:
        raise InvalidArgumentError(f"{argument} must be at least {limit}, got {value}")
    return value


def clamped_timeout_ms(timeout_ms: int | None) -> int | None:
    """Returns the timeout with 0, "do not wait", for negative values; `None` is no limit."""
    return None if timeout_ms is None else max(0, timeout_ms)


def as_rows(argument: str, value: Any, dtype: Any, batch_size: int) -> np.ndarray:
    """Returns one value per row of a batch, `[B]`; a scalar is repeated for all rows.

    Raises:
      InvalidArgumentError: If `value` has another shape.
    """
    array = np.asarray(value, dtype)
    if array.shape == (batch_size,):
        return np.ascontiguousarray(array)
    if array.shape == ():
        return np.full(batch_size, array)
    raise InvalidArgumentError(
        f"{argument} must have shape [{batch_size}], one value for each row of the batch, or "
        f"be one value for all, got shape {list(array.shape)}"
    )
