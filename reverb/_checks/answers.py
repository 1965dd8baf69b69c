# SPDX-License-Identifier: Apache-2.0
"""Answers of servers as values; programs get a `ReverbError` for those that make no sense."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from reverb.errors import DataLossError, ReverbError

__all__ = ["read_message", "reads_answer"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def reads_answer(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorates a function that reads an answer: its other errors become a `DataLossError`."""

    @functools.wraps(read)
    def reading(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return read(*args, **kwargs)
        except ReverbError:
            raise
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            OSError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            text = f"The answer of the server cannot be read: {repr(error)[:200]}"
            raise DataLossError(text) from error

    return reading


def read_message(cls: type[_T], proto: object, **others: object) -> _T:
    """Reads a message into a dataclass: its fields of the same names, and `others`."""
    known: Any = cls  # A dataclass.
    names = [field.name for field in dataclasses.fields(known) if field.name not in others]
    return cls(**{name: getattr(proto, name) for name in names}, **others)
