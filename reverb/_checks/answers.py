# SPDX-License-Identifier: Apache-2.0
"""Answers of servers that make no sense: programs get a `ReverbError` in every case."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from reverb.errors import DataLossError, ReverbError

__all__ = ["reads_answer"]

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
