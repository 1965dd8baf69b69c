# SPDX-License-Identifier: Apache-2.0
"""Tells systemd that the process `reverb_server` is ready, reloads, or stops.

The protocol is that of sd_notify(3): a datagram of lines to the Unix socket that the variable
NOTIFY_SOCKET names. Its value begins with / or, in the abstract namespace, with @.
"""

import os
import socket
import threading
import time

from reverb.server_executable.server_log import print_notice

__all__ = ["NOTIFY_VARIABLE", "ServiceManager"]

NOTIFY_VARIABLE = "NOTIFY_SOCKET"

# How long a message waits for a full socket.
_SEND_TIMEOUT_S = 1.0
# systemd reads only 4,096 bytes of a message.
_MAX_STATUS_CHARACTERS = 500


class ServiceManager:
    """Sends messages to the service manager, if there is one.

    Never raises; blocks for at most a second. The variable is removed from the environment, so that
    no child process sends messages for the service. Thread-safe.
    """

    def __init__(self) -> None:
        self._address = os.environ.pop(NOTIFY_VARIABLE, "")
        self._lock = threading.Lock()
        self._is_stopping = False
        self._has_failed = False

    def starting(self, status: str) -> None:
        """Reports the progress of the start."""
        self._notify(f"STATUS={_line(status)}")

    def ready(self, status: str) -> None:
        """Reports the end of the start or of a reload."""
        self._notify("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """Reports the start of a reload; `ready` ends it."""
        # systemd compares the time with that of its request (Type=notify-reload).
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._notify("RELOADING=1", f"MONOTONIC_USEC={microseconds}", "STATUS=reloading the config")

    def stopping(self, status: str) -> None:
        """Reports the start of the stop. Later messages of a reload are not sent."""
        self._notify("STOPPING=1", f"STATUS={_line(status)}", is_last=True)

    def _notify(self, *lines: str, is_last: bool = False) -> None:
        with self._lock:
            if not self._address or self._is_stopping:
                return
            self._is_stopping = is_last
            try:
                _send(self._address, "\n".join(lines))
            except OSError as error:
                self._report(error)

    def _report(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            at = f"{NOTIFY_VARIABLE}={self._address}"
            print_notice(f"cannot notify the service manager at {at}: {error}", "warn")


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
