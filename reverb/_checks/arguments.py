# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that several classes take."""

import contextlib
import operator
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from reverb._checks.number_arrays import as_numbers
from reverb.errors import InvalidArgumentError
from reverb.shown_text import type_name

__all__ = [
    "as_keys",
    "as_path",
    "as_rows",
    "check_at_least",
    "check_bool",
    "check_int64",
    "check_integer",
    "check_item",
    "check_mapping",
    "check_number",
    "check_table",
    "check_timeout_ms",
    "check_type",
    "clamped_timeout_ms",
]

# 34 years.
_FOREVER_MS = 2**40


def check_at_least(limit: int, argument: str, value: object, *, allows_bool: bool = False) -> int:
    """Returns the value as an int; the other arguments are those of `check_integer`.

    Raises:
      InvalidArgumentError: If it is below the limit.
      TypeError: If it is not an integer.
    """
    value = check_integer(argument, value, allows_bool=allows_bool)
    if value < limit:
        raise InvalidArgumentError(f"{argument} must be at least {limit}, got {value}")
    return value


def check_timeout_ms(timeout_ms: object) -> int | None:
    """Returns how long a call may wait: a number of milliseconds, or `None` for no limit.

    What is longer than 34 years is no limit.

    Raises:
      InvalidArgumentError: If it is below 0.
      TypeError: If it is neither an integer nor `None`.
    """
    value = None if timeout_ms is None else check_integer("timeout_ms", timeout_ms)
    if value is not None and value < 0:
        raise InvalidArgumentError(
            "timeout_ms must be a number of milliseconds of at least 0, or None for no limit, got "
            f"{value}"
        )
    return None if value is not None and value >= _FOREVER_MS else value


def check_bool(argument: str, value: object) -> bool:
    """Returns the value.

    Raises:
      TypeError: If it is neither `True` nor `False`: a text would count as true, whatever it says.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{argument} must be a bool, got {type_name(value)}")
    return bool(value)


def check_type(argument: str, value: object, expected: type, made_by: str) -> None:
    """Checks that a value is one of a class, which `made_by` returns.

    Raises:
      TypeError: If it is not.
    """
    if not isinstance(value, expected):
        raise TypeError(
            f"{argument} must be from {made_by}, which returns {expected.__name__}, got "
            f"{type_name(value)}"
        )


def check_int64(argument: str, value: object) -> int:
    """Returns the value as an int.

    Raises:
      InvalidArgumentError: If it does not fit into 64 bits.
      TypeError: If it is not an integer.
    """
    number = check_integer(argument, value)
    if not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(
            f"{argument} must be at least -2^63 and below 2^63, got {number}"
        )
    return number


def check_integer(argument: str, value: Any, *, allows_bool: bool = False) -> int:
    """Returns the value as an int.

    With `allows_bool`, `True` is 1, as in the arguments that dm-reverb has.

    Raises:
      TypeError: If it is not an integer.
    """
    if allows_bool or not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return operator.index(value)
    raise TypeError(f"{argument} must be an integer, got {type_name(value)}")


def check_number(argument: str, value: Any) -> float:
    """Returns the value as a float.

    Raises:
      TypeError: If it is not a number.
    """
    if not isinstance(value, str | bytes):
        with contextlib.suppress(TypeError, ValueError):
            return float(value)
    raise TypeError(f"{argument} must be a number, got {type_name(value)}")


def check_table(value: object, argument: str = "table") -> None:
    """Checks that a value can be the name of a table.

    Raises:
      TypeError: If it is not a str.
    """
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, the name of a table, got {type_name(value)}")


def check_mapping(argument: str, value: object, contents: str) -> None:
    """Checks that a value is a mapping; `contents` are such as "tables to priorities".

    Raises:
      TypeError: If it is not one.
    """
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(f"{argument} must be a mapping of {contents}, got {type_name(value)}")


def check_item(table: object, priority: object, removal_priority: object) -> None:
    """Checks the types of arguments that the core has refused.

    Raises:
      TypeError: If one of them has the wrong type.
    """
    check_table(table)
    check_number("priority", priority)
    if removal_priority is not None:
        check_number("removal_priority", removal_priority)


def clamped_timeout_ms(timeout_ms: int | None, *, allows_bool: bool = False) -> int | None:
    """Returns the timeout with 0, "do not wait", for negative values; `None` is no limit.

    Raises:
      TypeError: As `check_integer`.
    """
    if timeout_ms is None:
        return None
    return max(0, check_integer("timeout_ms", timeout_ms, allows_bool=allows_bool))


def as_path(argument: str, value: Any, *, of: str = "file") -> str:
    """Returns a path as text, as it was given; `of` says in the error what it has to be.

    Raises:
      InvalidArgumentError: If it is empty or has a zero byte.
      TypeError: If it is no path.
    """
    try:
        path = os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{argument} must be a path, got {type_name(value)}") from None
    if not path or "\0" in path:
        raise InvalidArgumentError(f"{argument} must be the path of a {of}, got {path!r}")
    return path


def as_rows(argument: str, value: Any, dtype: Any, batch_size: int) -> np.ndarray:
    """Returns one value for each row of a batch, `[B]`; a scalar is repeated for all rows.

    With float64, `value` may be of any library and any number dtype; the numbers keep their value.

    Raises:
      InvalidArgumentError: If `value` has another shape.
    """
    array = as_numbers(argument, value) if dtype is np.float64 else np.asarray(value, dtype)
    if array.shape == (batch_size,):
        return np.ascontiguousarray(array)
    if array.shape == ():
        return np.full(batch_size, array)
    raise InvalidArgumentError(
        f"{argument} must have shape [{batch_size}], one value for each row of the batch, or "
        f"be one value for all, got shape {list(array.shape)}"
    )


def as_keys(argument: str, value: Any) -> np.ndarray:
    """Returns keys of items as uint64 `[B]`; negative int64 are taken as their bits.

    Raises:
      InvalidArgumentError: If `value` has another shape.
      TypeError: If it does not consist of integers of at most 64 bits.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(f"{argument} must be integers [B], got {value!r}: {error}") from None
    if array.shape == (0,):
        return np.empty(0, np.uint64)
    if array.ndim != 1:
        raise InvalidArgumentError(
            f"{argument} must have shape [B], one for each item, got shape {list(array.shape)}"
        )
    if array.dtype.kind == "O" or (array.dtype.kind == "f" and isinstance(value, list | tuple)):
        # NumPy has no integer type for all numbers of a list.
        keys = array if array.dtype.kind == "O" else value
        return np.asarray([_key(argument, key) for key in keys], np.uint64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{argument} must be integers, got an array of {array.dtype}")
    array = array.astype(np.int64 if array.dtype.kind == "i" else np.uint64)
    return np.ascontiguousarray(array).view(np.uint64)


def _key(argument: str, value: Any) -> int:
    try:
        key = operator.index(value)
    except TypeError:
        raise TypeError(f"{argument} must be integers, got {value!r}") from None
    if not -(2**63) <= key < 2**64:
        raise TypeError(f"{argument} must be integers in [-2^63, 2^64), got {key}")
    return key % 2**64
