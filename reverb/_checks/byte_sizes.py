# SPDX-License-Identifier: Apache-2.0
"""Numbers of bytes as programs write them: `4096`, `"12GiB"`, `"80%"`."""

import operator
import re
from typing import Any

from reverb.core import native
from reverb.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["parse_byte_size", "parse_byte_size_on_disk", "parse_byte_size_or_share"]

_UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%")
_LIMIT = 2**63


def parse_byte_size(argument: str, value: object) -> int | None:
    """Returns a number of bytes of a table; `None` stays `None`.

    Raises:
      InvalidArgumentError: If it is below 1, too large, not a size, or a share.
      TypeError: If it is neither an integer nor a string.
    """
    if isinstance(value, str) and _SHARE.fullmatch(value.strip()):
        raise InvalidArgumentError(
            f"{argument} of a table cannot be a share; give bytes, or {argument}={value!r} of the "
            "Server"
        )
    return parse_byte_size_on_disk(argument, value)


def parse_byte_size_on_disk(argument: str, value: object) -> int | None:
    """Returns a number of bytes on a disk; `None` stays `None`.

    Raises:
      InvalidArgumentError: If it is below 1, too large, or not a size.
      TypeError: If it is neither an integer nor a string.
    """
    return _parse(argument, value, 'a number of bytes or a size such as "12GiB"')


def parse_byte_size_or_share(argument: str, value: object) -> int | None:
    """Returns a number of bytes; a share refers to the memory that the process may use.

    That is the machine's memory, or the smallest limit of its control groups.

    Raises:
      InvalidArgumentError: If it is below 1, too large, not a size, or a share above 100 %.
      FailedPreconditionError: If it is a share, and the system does not report its memory.
      TypeError: If it is neither an integer nor a string.
    """
    share = _SHARE.fullmatch(value.strip()) if isinstance(value, str) else None
    if share is None:
        forms = 'a number of bytes, a size such as "12GiB" or a share such as "80%"'
        return _parse(argument, value, forms)
    percent = float(share[1])
    if not 0 < percent <= 100:
        raise InvalidArgumentError(f"{argument} must be above 0% and at most 100%, got {value!r}")
    memory = native.process_memory()
    if memory is None:
        raise FailedPreconditionError(
            f"{argument}={value!r} cannot be used here: this system does not say how much memory "
            "the process may use. Give a number of bytes."
        )
    return _checked(argument, int(memory * percent / 100), value)


def _parse(argument: str, value: Any, forms: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, str):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            text = f"{argument} must be {forms}, got {value!r} of type {type(value).__name__}"
            raise TypeError(text)
        return _checked(argument, operator.index(value), value)
    match = _SIZE.fullmatch(value.strip())
    if match is None or match[2] not in _UNITS:
        raise InvalidArgumentError(f'{argument} must be {forms}, got "{value}"')
    return _checked(argument, int(float(match[1]) * _UNITS[match[2]]), value)


def _checked(argument: str, size: int, value: object) -> int:
    if size < 1:
        raise InvalidArgumentError(f"{argument} must be at least 1 or None, got {value}")
    if size >= _LIMIT:
        raise InvalidArgumentError(f"{argument} must be below 8 EiB, got {value}")
    return size
