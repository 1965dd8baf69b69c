# SPDX-License-Identifier: Apache-2.0
"""Files that are read, and nothing in their place that would keep a program waiting.

Opening a pipe waits for its writer, and a device may have no end. Links to files are followed.
"""

import os
from io import RawIOBase
from typing import BinaryIO

from reverb.core import native

__all__ = ["MAX_BYTES", "append_to_file", "open_file", "read_file"]

# What is read whole has some thousand bytes; the core reads as much of its own files.
MAX_BYTES = 16 * 2**20


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file to read its bytes, and nothing that could wait for a writer or have no end.

    Raises:
      OSError: If it cannot be opened, or is a directory, a pipe, a socket or a device; names it.
    """
    return os.fdopen(native.open_file(path, False), "rb")


def append_to_file(path: str | os.PathLike[str]) -> RawIOBase:
    """Opens a file to append to it, without a buffer, and makes one if there is none. Never waits.

    Raises:
      OSError: As `open_file`.
    """
    return os.fdopen(native.open_file(path, True), "ab", buffering=0)


def read_file(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Returns the content of a file.

    Raises:
      OSError: As `open_file`, or if it has more than `max_bytes`; names it.
    """
    return native.read_file(path, max_bytes)
