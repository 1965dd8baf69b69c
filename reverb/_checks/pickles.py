# SPDX-License-Identifier: Apache-2.0
"""Refusal of pickles and copies of objects that belong to one process."""

from typing import Any, NoReturn

__all__ = ["OF_CLIENTS", "not_pickled"]

OF_CLIENTS = "make one in each process, of a Client, which can be pickled"


def not_pickled(instead: str) -> Any:
    """Makes a `__reduce__` that raises a `TypeError` with what to do instead."""

    def __reduce__(self: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: {instead}")

    return __reduce__
