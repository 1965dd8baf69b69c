# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments of items."""

import functools

from reverb import errors
from reverb._checks import arguments

__all__ = ["check_at_least", "check_choice", "check_discount"]


# `True` is 1, as in the arguments that dm-reverb has.
check_at_least = functools.partial(arguments.check_at_least, allows_bool=True)


def check_discount(discount: float) -> None:
    """Raises `InvalidArgumentError` unless the discount is in [0, 1]."""
    if not 0.0 <= discount <= 1.0:
        raise errors.InvalidArgumentError(f"discount must be in [0, 1], got {discount}")


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises `InvalidArgumentError` unless the value is one of the choices."""
    if value not in choices:
        names = " or ".join(f'"{choice}"' for choice in choices)
        raise errors.InvalidArgumentError(f"{argument} must be {names}, got {value!r}")
