# SPDX-License-Identifier: Apache-2.0
"""Tells systemd that the process `reverb_server` is ready, answers, reloads, works, or stops.

The protocol is that of sd_notify(3): a datagram of lines to the Unix socket that the variable
NOTIFY_SOCKET names. Its value begins with / or, in the abstract namespace, with @.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

from reverb.errors import ReverbError
from reverb.server_executable.server_log import print_notice

__all__ = ["NOTIFY_VARIABLE", "ServiceManager"]

NOTIFY_VARIABLE = "NOTIFY_SOCKET"

# How long a message waits for a full socket.
_SEND_TIMEOUT_S = 1.0
# systemd reads only 4,096 bytes of a message.
_MAX_STATUS_CHARACTERS = 500

# A start or a stop that works gets more time than the unit gives it: so often, and so much.
_WORK_INTERVAL_S = 10.0
_EXTENSION_S = 60.0
# A process that uses less of a processor waits for something, and gets no more time.
_LEAST_WORK = 0.01


class ServiceManager:
    """Sends messages to the service manager, if there is one.

    Never raises; blocks for at most a second. The variables are removed from the environment, so
    that no child process sends messages for the service. Thread-safe.
    """

    def __init__(self) -> None:
        self._address = os.environ.pop(NOTIFY_VARIABLE, "")
        microseconds = os.environ.pop("WATCHDOG_USEC", "")
        is_meant = os.environ.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        is_watched = self._address and is_meant and microseconds.isdecimal()
        self._watchdog_s = int(microseconds) / 1e6 if is_watched else 0.0
        self._lock = threading.Lock()
        self._is_stopping = False
        self._has_failed = False

    def starting(self, status: str) -> None:
        """Reports the progress of the start."""
        self._notify(f"STATUS={_line(status)}")

    def ready(self, status: str) -> None:
        """Reports the end of the start or of a reload."""
        self._notify("READY=1", f"STATUS={_line(status)}")

    @contextlib.contextmanager
    def watched(self, probe: Callable[[float], None]) -> Iterator[None]:
        """Reports during a block that the server answers, if the service has `WatchdogSec=`.

        Each report comes after a call of `probe`, with a limit of its time in seconds. An
        `OSError` or a `ReverbError` of it, or its silence, is no report.
        """

        def report() -> None:
            try:
                probe(self._watchdog_s)
            except (OSError, ReverbError) as error:
                print_notice(f"the server does not answer its own probe: {error}", "error")
            else:
                self._notify("WATCHDOG=1")

        with _repeated(report, self._watchdog_s / 2):
            yield

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Asks for more time during a block, as long as the process uses its processors."""
        used_s = time.process_time()

        def report() -> None:
            nonlocal used_s
            before_s, used_s = used_s, time.process_time()
            if used_s - before_s >= _LEAST_WORK * _WORK_INTERVAL_S:
                self._notify(_more_time(), is_of_stop=True)

        with _repeated(report, _WORK_INTERVAL_S if self._address else 0.0):
            yield

    def reloading(self) -> None:
        """Reports the start of a reload; `ready` ends it."""
        # systemd compares the time with that of its request (Type=notify-reload).
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._notify("RELOADING=1", f"MONOTONIC_USEC={microseconds}", "STATUS=reloading the config")

    def stopping(self, status: str, drain_s: float) -> None:
        """Reports the start of the stop, which waits `drain_s` seconds without work at most.

        Later messages of a reload are not sent.
        """
        with self._lock:
            self._is_stopping = True
        lines = "STOPPING=1", _more_time(drain_s), f"STATUS={_line(status)}"
        self._notify(*lines, is_of_stop=True)

    def _notify(self, *lines: str, is_of_stop: bool = False) -> None:
        with self._lock:
            if not self._address or (self._is_stopping and not is_of_stop):
                return
            try:
                _send(self._address, "\n".join(lines))
            except OSError as error:
                self._report(error)

    def _report(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            at = f"{NOTIFY_VARIABLE}={self._address}"
            print_notice(f"cannot notify the service manager at {at}: {error}", "warn")


@contextlib.contextmanager
def _repeated(action: Callable[[], None], interval_s: float) -> Iterator[None]:
    """Calls `action` in a thread every `interval_s` seconds of a block; 0: never."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(interval_s):
            action()

    if interval_s:
        threading.Thread(target=run, name="reverb-notify", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()  # The thread is not joined: a probe may hang.


def _more_time(seconds: float = 0.0) -> str:
    return f"EXTEND_TIMEOUT_USEC={round((seconds + _EXTENSION_S) * 1e6)}"


def _send(address: str, text: str) -> None:
    if address[0] not in "/@":
        raise OSError("the address must begin with / or @")
    if address[0] == "@":
        address = f"\0{address[1:]}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.settimeout(_SEND_TIMEOUT_S)
        connection.sendto(text.encode("utf-8", "replace"), address)


def _line(text: str) -> str:
    """Returns a text as one line, because a second line could be another message."""
    return " ".join(text.split())[:_MAX_STATUS_CHARACTERS]
