# SPDX-License-Identifier: Apache-2.0
"""Waiting for what other threads and processes bring about."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

# How many times as long everything may take, the time-outs of pytest included. With 4, and busy
# loops beside the tests, what fails is a race or an order, not a lack of time.
PATIENCE = float(os.environ.get("REVERB_TEST_PATIENCE", "1"))

# How long a test waits for what must happen. Never reached unless something is broken.
DEADLINE_S = 30.0 * PATIENCE


def wait_until(condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    """Blocks until a condition holds: `wait_until(lambda: table.info.current_size == 3)`."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.001)


class Background:
    """A call in a thread of its own."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._outcome = None
        self._error: BaseException | None = None
        self.started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(function, args, kwargs), daemon=True
        )
        self._thread.start()
        assert self.started.wait(DEADLINE_S)

    def _run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.started.set()
        try:
            self._outcome = function(*args, **kwargs)
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        """Whether the call has not ended."""
        return self._thread.is_alive()

    def result(self) -> Any:
        """The result or the error of the call; waits for it."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the call did not return"
        if self._error is not None:
            raise self._error
        return self._outcome
