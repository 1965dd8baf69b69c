# SPDX-License-Identifier: Apache-2.0
"""Updates of priorities in the background."""

import queue
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reverb._checks.arguments import as_keys, as_rows
from reverb.errors import FailedPreconditionError

if TYPE_CHECKING:
    from reverb.client import Client  # It imports this room.

__all__ = ["PriorityUpdates"]

# Limit of queued updates; it slows down a learner that is faster than the server.
_MAX_WAITING = 16

# How long `close` waits for queued updates.
_CLOSE_TIMEOUT_S = 5.0


class PriorityUpdates:
    """A queue of updates, and a thread that sends them in their order.

    The thread starts with the first update, and ends when the queue is closed or dropped.
    """

    def __init__(self, client: "Client", tables: Sequence[str]) -> None:
        """Makes a queue; does not connect yet.

        Every update goes to all tables: keys are unique among tables, and a table ignores keys that
        it does not have.
        """
        self._client = client
        self._tables = list(tables)
        self._queue: queue.Queue[Any] = queue.Queue(_MAX_WAITING)
        self._failure: list[BaseException] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._end = weakref.finalize(self, self._queue.put, None)
        self._end.atexit = False

    def put(self, keys: object, priorities: object) -> None:
        """Adds an update of keys `[B]`, with priorities `[B]` or one; blocks while 16 are queued.

        Raises:
          InvalidArgumentError: If there is not one priority for each key.
          TypeError: If `keys` are not integers.
          FailedPreconditionError: If the queue is closed.
          ReverbError: If an earlier update failed.
        """
        if self._is_closed:
            raise FailedPreconditionError(
                "the iterator is closed and takes no updates; earlier ones were sent"
            )
        # Copies: the caller may use the memory again.
        keys = np.array(as_keys("keys", keys))
        priorities = np.array(as_rows("priorities", priorities, np.float64, len(keys)))
        self.check()
        with self._lock:
            if self._thread is None:
                arguments = (self._client, self._tables, self._queue, self._failure)
                self._thread = threading.Thread(
                    target=_send, args=arguments, name="reverb-priorities", daemon=True
                )
                self._thread.start()
        self._queue.put((keys, priorities))

    def check(self) -> None:
        """Raises the error of a failed update, once."""
        if self._failure:
            raise self._failure.pop(0)

    def flush(self) -> None:
        """Waits until all updates are done.

        Raises:
          ReverbError: If one failed.
        """
        self._queue.join()
        self.check()

    def close(self) -> None:
        """Ends the thread after the queued updates; waits for at most 5 s."""
        self._is_closed = True
        if self._thread is not None and self._end.detach():
            self._queue.put(None)
            self._thread.join(_CLOSE_TIMEOUT_S)


def _send(
    client: "Client", tables: list[str], waiting: "queue.Queue[Any]", failure: list[BaseException]
) -> None:
    while True:
        update = waiting.get()
        try:
            if update is None:
                return
            keys, priorities = update
            for table in tables:
                client.update_priorities(table, keys, priorities)
        except BaseException as error:
            failure.append(error)
        finally:
            waiting.task_done()
