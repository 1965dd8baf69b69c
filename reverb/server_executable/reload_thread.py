# SPDX-License-Identifier: Apache-2.0
"""The thread that reloads, so that a slow reload does not delay a stop."""

import logging
import threading
from collections.abc import Callable

__all__ = ["ReloadThread"]

_logger = logging.getLogger(__name__)

# After the server has stopped, a reload ends soon, unless it waits for a file system.
_END_TIMEOUT_S = 1.0


class ReloadThread:
    """Reloads on request, one at a time. Requests during a reload cause one more."""

    def __init__(self, reload: Callable[[], None]) -> None:
        self._reload = reload
        self._is_requested = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="reverb-reload", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Asks for a reload that begins after this call. Never blocks."""
        self._is_requested.set()

    def close(self) -> None:
        """Ends the thread. Waits for at most a second: a reload may hang in a file system."""
        self._is_closed = True
        self._is_requested.set()
        self._thread.join(_END_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            self._is_requested.wait()
            self._is_requested.clear()
            if self._is_closed:
                return
            try:
                self._reload()
            except Exception:  # The server continues, and the next reload may succeed.
                _logger.exception("the reload has failed")
