# SPDX-License-Identifier: Apache-2.0
"""A thread that asks a server for its status again and again."""

import threading
import time
from collections.abc import Callable

from reverb.command.status_source import StatusSource
from reverb.errors import ReverbError
from reverb.server_status import ServerStatus


class Poller:
    """Queries a server in a thread, so that the screen never waits for it.

    The thread does not keep the process alive: a query that the server never answers ends with the
    program. The next query waits for a late answer. The functions are called in the thread.
    """

    def __init__(
        self,
        source: StatusSource,
        interval_s: float,
        on_status: Callable[[ServerStatus], object],
        on_error: Callable[[ReverbError], object],
    ) -> None:
        self._source = source
        self._interval_s = interval_s
        self._on_status = on_status
        self._on_error = on_error
        self._stopped = threading.Event()
        self._going_on = threading.Event()
        self._going_on.set()
        self._thread = threading.Thread(target=self._run, name="reverb top", daemon=True)

    def start(self) -> None:
        """Starts the queries."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the running query; does not wait for it."""
        self._stopped.set()
        self._going_on.set()

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called last."""
        return not self._going_on.is_set()

    def pause(self) -> None:
        """Stops the queries until `go_on`."""
        self._going_on.clear()

    def go_on(self) -> None:
        """Resumes the queries."""
        self._going_on.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            self._ask()
            self._stopped.wait(max(0.0, began + self._interval_s - time.monotonic()))
            self._going_on.wait()

    def _ask(self) -> None:
        try:
            status = self._source.ask(with_streams=True)
        except ReverbError as error:
            if not self._stopped.is_set():
                self._on_error(error)
            return
        if not self._stopped.is_set():
            self._on_status(status)
