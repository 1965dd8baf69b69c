# SPDX-License-Identifier: Apache-2.0
"""Keeps the screen free of the core's warnings, which the core writes to the terminal."""

import contextlib
import os
import sys
from collections.abc import Iterator

from reverb.core import native

_STANDARD_ERROR = 2


@contextlib.contextmanager
def screen_alone() -> Iterator[None]:
    """Drops output to file descriptor 2, and leaves the terminal to `sys.__stderr__`.

    Textual draws on `sys.__stderr__`. The core's client warns of a server that does not answer;
    the app shows that itself.
    """
    terminal = os.dup(_STANDARD_ERROR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    usual = sys.__stderr__
    # The stream does not own its descriptor, which is closed below.
    sys.__stderr__ = os.fdopen(  # pyright: ignore[reportAttributeAccessIssue]
        terminal, "w", encoding=sys.stderr.encoding, errors="backslashreplace", closefd=False
    )
    native.wait_for_log()
    os.dup2(nowhere, _STANDARD_ERROR)
    os.close(nowhere)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # The terminal may be gone.
            sys.__stderr__.flush()
        sys.__stderr__ = usual  # pyright: ignore[reportAttributeAccessIssue]
        native.wait_for_log()
        os.dup2(terminal, _STANDARD_ERROR)
        os.close(terminal)
