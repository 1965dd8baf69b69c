# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/adapters.md.
"""Python's `queue.Queue` over a table, for processes on any machine.

server = reverb.Server([reverb.Table.queue("rollouts", max_size=1024)], port=8000)
queue = Queue("localhost:8000", "rollouts")
"""

import functools
import math
import os
import queue
import threading
import time
from typing import Any

import numpy as np

from reverb import Client
from reverb.adapters.queue_values import columns_of, value_of
from reverb.errors import DeadlineExceededError, TableNotFoundError

__all__ = ["Queue"]

# Between two looks at a queue that was full, in seconds: at first, and at most.
_SOON_S, _LATER_S = 0.001, 0.05
# A time-out that is none, in seconds: 30 years.
_AGES_S = 1e9


class Queue:
    """A queue with the methods of `queue.Queue`, whose items are in a table of a server.

    All queues of one table, in any process and on any machine, are one queue: first in, first out,
    each item once. May be shared by threads and forked children, and pickled: a pickle has the
    address.

    An item is a nest of lists, tuples and dicts. Arrays, CPU tensors, `bytes`, numbers, strings and
    `None` travel as they are; anything else is pickled, and unpickled by `get`, so let only
    programs that you trust insert into the table.

    Example:
      >>> server = reverb.Server([reverb.Table.queue("queue", max_size=100)])
      >>> queue = Queue(f"localhost:{server.port}", "queue")
      >>> queue.put({"tokens": np.arange(3), "reward": 1.0})
      >>> queue.get()
      {'tokens': array([0, 1, 2]), 'reward': 1.0}

    Attributes:
      maxsize: Number of items at which this queue is full. It can be set; 0: that of the table.
    """

    def __init__(self, address: str | Client, table: str, *, maxsize: int = 0) -> None:
        """Makes a queue; does not connect yet.

        Args:
          address: Address of the server, or a client of it.
          table: Name of a table without signature, from `reverb.Table.queue`.
          maxsize: Number of items at which this queue is full, if that is less than the `max_size`
            of the table. Processes that put at the same moment may each be one item above it,
            never above `max_size`. 0 or less: that of the table.
        """
        self._client = Client(address) if isinstance(address, str) else address
        self._table = table
        self.maxsize = maxsize
        # Threads that look for room and then insert, one at a time.
        self._putting = threading.Lock()
        self._process = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Queue, maxsize=self.maxsize), (self._client, self._table)

    def __repr__(self) -> str:
        return f"Queue({self._client.server_address!r}, {self._table!r}, maxsize={self.maxsize})"

    def qsize(self) -> int:
        """Returns the number of items; blocks until the server answers."""
        return self._client.size(self._table)

    def empty(self) -> bool:
        """Returns whether there is no item; blocks until the server answers."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Returns whether there is no room for an item; blocks until the server answers."""
        return not self._has_room(math.inf)

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Puts an item; returns when the server has it.

        Blocks while the queue is full. Ctrl-C may end the call before or after the item is there;
        without `timeout` and `maxsize` an item on its way is still put when there is room, as long
        as this process lives.

        Args:
          item: The item.
          block: `False`: does not wait for room.
          timeout: How long to wait for room, in seconds; `None`: any time. A server that has to be
            asked is given whole seconds for its answer.

        Raises:
          queue.Full: Without room in time, or without an answer of the server. The item was not
            delivered and will not be.
          SignatureMismatchError: If the table has a signature.
          TableNotFoundError: If there is no such table.
          UnavailableError: If the server stopped for good, is away for longer than
            `connect_timeout_s` of the client, or reads nothing for 10 s, because its memory is used
            up; this may end a longer time-out. Only then it is unknown if the item is there.
          UnimplementedError: With a time-out, if the server is one of dm-reverb or of an earlier
            release.
        """
        until = _end(block, timeout)
        columns = columns_of(item)
        if until == math.inf and self.maxsize <= 0:
            self._client.insert(columns, {self._table: 1.0})
            return
        pause_s = _SOON_S
        while not self._put_at_once(columns, until):
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise queue.Full
            time.sleep(min(left_s, pause_s))
            pause_s = min(2 * pause_s, _LATER_S)

    def put_nowait(self, item: object) -> None:
        """Puts an item if there is room: `put(item, block=False)`."""
        self.put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Takes the oldest item out of the queue.

        Blocks while the queue is empty. Nothing is fetched ahead: a process that dies has at most
        the one item, and Ctrl-C may lose the one that is on its way.

        Args:
          block: `False`: does not wait for an item.
          timeout: How long to wait for one, in seconds; `None`: any time. A server that does not
            answer or is away is waited for beyond that.

        Returns:
          The item; its arrays and tensors are writable and its own.

        Raises:
          queue.Empty: Without an item in time.
          DataLossError: If the item was not put by a queue.
          TableNotFoundError: If there is no such table.
          UnavailableError: If the server stopped for good, or is away for longer than
            `connect_timeout_s` of the client.
        """
        until = _end(block, timeout)
        left_ms = None
        if until != math.inf:
            left_ms = math.ceil(max(until - time.monotonic(), 0) * 1000)
        try:
            batch = self._client.sample_batch(self._table, 1, timeout_ms=left_ms)
        except DeadlineExceededError as error:
            raise queue.Empty(str(error)) from None
        # A queue puts items of one step.
        return value_of([column[0, 0, ...] for column in batch.data], self._table)

    def get_nowait(self) -> Any:
        """Takes the oldest item if there is one: `get(block=False)`."""
        return self.get(block=False)

    def _put_at_once(self, columns: list[Any], until: float) -> bool:
        """Puts an item if there is room now."""
        if self.maxsize <= 0:
            return self._put_into_room(columns, until)
        putting, patience_s = self._lock(), _patience_s(until)
        if not putting.acquire(timeout=-1 if patience_s is None else patience_s):
            return False
        try:
            return self._put_into_room(columns, until)
        finally:
            putting.release()

    def _lock(self) -> threading.Lock:
        if self._process != os.getpid():  # A thread that held it is not in a forked child.
            self._putting, self._process = threading.Lock(), os.getpid()
        return self._putting

    def _put_into_room(self, columns: list[Any], until: float) -> bool:
        # A server that stands still has nothing to deliver later, and a full one costs no data.
        if not self._has_room(until):
            return False
        try:
            rows = [column[np.newaxis] for column in columns]
            self._client.insert_batch(rows, {self._table: 1.0}, timeout_ms=0)
        except DeadlineExceededError:
            return False
        return True

    def _has_room(self, until: float) -> bool:
        try:
            tables = self._client.server_info(_patience_s(until))
        except DeadlineExceededError:
            return False
        if self._table not in tables:
            raise TableNotFoundError(f"there is no table {self._table!r} among {sorted(tables)}")
        info = tables[self._table]
        limit = min(self.maxsize, info.max_size) if self.maxsize > 0 else info.max_size
        return info.current_size < limit


def _patience_s(until: float) -> int | None:
    """Returns the whole seconds that there are for an answer; `None`: any time."""
    return None if until == math.inf else max(math.ceil(until - time.monotonic()), 1)


def _end(block: bool, timeout: float | None) -> float:
    """Returns until when a call may wait, on the clock of `time.monotonic`."""
    if not block:
        return time.monotonic()
    if timeout is None:
        return math.inf
    if not timeout >= 0:
        raise ValueError(f"timeout must be a number of seconds, 0 or more, got {timeout}")
    return math.inf if timeout >= _AGES_S else time.monotonic() + timeout
