# SPDX-License-Identifier: Apache-2.0
"""The life of the process `reverb_server`: start, say so when ready, wait for a signal, stop."""

import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

from reverb.errors import ReverbError
from reverb.server import Server

__all__ = ["FAILED", "INTERRUPTED", "STOPPED", "live", "say"]

# Exit codes. 2, for a command line or a config that cannot be used, is argparse's.
STOPPED = 0
FAILED = 1
INTERRUPTED = 128 + signal.SIGINT

# SIGHUP comes when a terminal is closed; not every system has it.
_SIGNALS = tuple(it for it in signal.Signals if it.name in ("SIGTERM", "SIGINT", "SIGHUP"))


def live(start: Callable[[], Server], table_names: list[str], host: str | None) -> int:
    """Runs a server until a signal stops it. To be called in the main thread.

    Args:
      start: Starts the server. It may take a while; a signal then ends the process.
      table_names: For the line that tells that the server is ready.
      host: Likewise; `None` means all addresses.

    Returns:
      The exit code of the process.
    """
    try:
        server = start()
        with _Signals() as signals:
            place = "all addresses" if host is None else host
            tables = ", ".join(table_names)
            _announce(f"reverb_server is ready on port {server.port} of {place}: tables {tables}")
            received = signals.wait()
    except KeyboardInterrupt:  # Before there were handlers.
        return INTERRUPTED
    except (ReverbError, OSError) as error:
        say(f"cannot start: {error}")
        return FAILED
    say(f"stopping after {received.name}")
    try:
        server.stop()
    except ReverbError as error:
        say(f"stopped, but: {error}")
        return FAILED
    say("stopped")
    return INTERRUPTED if received == signal.SIGINT else STOPPED


def say(text: str) -> None:
    """Prints a line for people, on standard error.

    Ctrl-C also ends what the output is piped to; the server saves and stops all the same.
    """
    if sys.stderr is None:
        return
    try:
        print(f"reverb_server: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = None  # The interpreter would try once more when it ends, and fail.


def _announce(text: str) -> None:
    """Prints a line for programs, on standard output. A server lives even if nobody reads it."""
    try:
        print(text, flush=True)
    except (OSError, ValueError) as error:
        say(f"{text} (standard output is closed: {error})")
        sys.stdout = None  # As above.


class _Signals:
    """Waits for the first of the signals that stop a server; leaving it lets a second one kill.

    But not a SIGHUP: when a terminal is closed, its shell and the system send one each, and the
    second would come in the middle of the last save.

    The handlers do nothing: the interpreter writes the number of each signal to a pipe, so none is
    lost, and no code is interrupted at a place where it cannot be.
    """

    def __enter__(self) -> "_Signals":
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._handle(number, _do_nothing)
        return self

    def __exit__(self, *exc: object) -> None:
        """Gives the signals back to the system, which ends the process by them."""
        for number in _SIGNALS:
            is_hangup = number.name == "SIGHUP"
            self._handle(number, signal.SIG_IGN if is_hangup else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self) -> signal.Signals:
        """Blocks until a signal comes."""
        while True:
            number = os.read(self._reader, 1)[0]
            if number in _SIGNALS:
                return signal.Signals(number)

    def _handle(self, number: signal.Signals, handler: Any) -> None:
        # A shell starts background jobs with SIGINT ignored, so that Ctrl-C is for the others, and
        # nohup ignores SIGHUP, so that the job outlives the terminal.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _do_nothing(number: int, frame: types.FrameType | None) -> None:
    del number, frame
