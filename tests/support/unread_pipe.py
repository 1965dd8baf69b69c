# SPDX-License-Identifier: Apache-2.0
"""A standard stream that is a pipe which nobody reads."""

from __future__ import annotations

import contextlib
import os


def put_unread(descriptor: int, *, is_closed: bool = False) -> int:
    """Makes a descriptor of this process the end of a full pipe; returns the other end.

    With `is_closed` the other end is closed instead.
    """
    reader, writer = os.pipe()
    if is_closed:
        os.close(reader)
    else:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writer, bytes(1 << 20)):
                pass
        os.set_blocking(writer, True)
    os.dup2(writer, descriptor)
    os.close(writer)
    return reader
