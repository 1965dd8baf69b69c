# SPDX-License-Identifier: Apache-2.0
"""The argument `compression` of clients and their writers."""

from typing import Literal, TypeAlias

from reverb.errors import InvalidArgumentError

__all__ = ["Compression", "compresses"]

Compression: TypeAlias = Literal["auto", "none"]


def compresses(compression: Compression | None, default: Compression = "auto") -> bool:
    """Returns whether chunks are compressed where that saves memory; `None` stands for the default.

    Raises:
      InvalidArgumentError: If it is none of the values there are.
    """
    chosen = default if compression is None else compression
    if chosen not in ("auto", "none"):
        raise InvalidArgumentError(f'compression must be "auto" or "none", got {chosen!r}')
    return chosen == "auto"
