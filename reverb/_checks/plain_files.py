# SPDX-License-Identifier: Apache-2.0
"""Opens plain files only, so that no program waits for a pipe or a device.

Opening a pipe waits for its writer, and a device may have no end. Links to files are followed.
"""

import os
from io import RawIOBase
from typing import BinaryIO

from reverb.core import native

__all__ = ["MAX_BYTES", "append_to_file", "open_file", "read_file"]

# Far above the size of any file that is read whole; the core has the same limit.
MAX_BYTES = 16 * 2**20


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a plain file to read its bytes.

    Raises:
      OSError: If it cannot be opened, or is a directory, a pipe, a socket or a device; the text
        names it.
    """
    return os.fdopen(native.open_file(path, False), "rb")


def append_to_file(path: str | os.PathLike[str]) -> RawIOBase:
    """Opens a plain file to append to it, unbuffered. Never waits.

    A file that is missing is created, with mode 0600.

    Raises:
      OSError: As `open_file`.
    """
    return os.fdopen(native.open_file(path, True), "ab", buffering=0)


def read_file(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Returns the content of a file.

    Raises:
      OSError: As `open_file`, or if it has more than `max_bytes`.
    """
    return native.read_file(path, max_bytes)
