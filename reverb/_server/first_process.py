# SPDX-License-Identifier: Apache-2.0
"""Signals of the first process of a container, where the kernel gives them no default action."""

import os
import signal
import threading
import types
from typing import NoReturn

from reverb.core import native

__all__ = ["SIGNALS", "end_at_signals"]

# A terminal that is closed sends SIGHUP; not every system has it.
SIGNALS = tuple(it for it in signal.Signals if it.name in ("SIGTERM", "SIGINT", "SIGHUP"))


def end_at_signals() -> None:
    """Makes signals without a handler end the first process of a container, as they end others.

    The interpreter calls handlers in the main thread, between two of its steps, so a load or a save
    is finished first. Does nothing in other processes, and in other threads, which may install no
    handlers.
    """
    if os.getpid() != 1 or threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, frame: types.FrameType | None) -> NoReturn:
    del frame
    native.wait_for_log()
    os._exit(128 + number)
