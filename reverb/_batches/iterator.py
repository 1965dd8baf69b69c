# SPDX-License-Identifier: Apache-2.0
"""An iterator over batches that are fetched ahead."""

import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar

from reverb._batches.options import BatchOptions
from reverb._batches.prefetching import (
    Failure,
    Patience,
    Pipe,
    PrefetchStats,
    Source,
    start_thread,
)
from reverb._batches.priority_updates import PriorityUpdates
from reverb._batches.source import CoreBatches
from reverb._checks.pickles import OF_CLIENTS, not_pickled

__all__ = ["BatchIterator"]

_Self = TypeVar("_Self", bound="BatchIterator")

# How long `close` waits for the thread, which checks for a stop several times per second.
_JOIN_TIMEOUT_S = 5.0


class BatchIterator:
    """Made by `batches`: an iterator over batches that are fetched ahead.

    `next` returns a batch, and blocks until there is one. It raises the errors of the background
    thread, and of updates of priorities in the background. An error of the thread comes after the
    batches that were fetched before it, and again from every later `next`. Close the iterator, or
    use it in a `with` block; queued batches then count as sampled. Not thread-safe, except for
    `update_priorities`.

    Example:
      >>> iterator = reverb.batches(client, "table", 2)
      >>> len(next(iterator).info.key)
      2
      >>> iterator.close()
    """

    def __init__(
        self,
        source: Source,
        size: int,
        timeout_ms: int | None,
        updates: PriorityUpdates,
        ahead: CoreBatches | None = None,
    ) -> None:
        """Starts to fetch `size` batches; `ahead` does so instead of a thread, if it is given."""
        self._pipe = Pipe(size)
        self._timeout_ms = timeout_ms
        self._updates = updates
        self._ahead = ahead
        self._num_retrieved = 0
        self._wait_s = 0.0
        self._age_s = 0.0
        self._thread: threading.Thread | None = None
        self._stop = weakref.finalize(self, self._pipe.stop)
        # Daemon threads end at the exit of the program anyway, and a thread that waits in `next`
        # must not be woken to raise an error then.
        self._stop.atexit = False
        if ahead is not None:
            ahead.start()
        else:
            self._thread = start_thread(source, self._pipe)

    __reduce__ = not_pickled(OF_CLIENTS)

    def __repr__(self) -> str:
        if "_pipe" not in self.__dict__:
            return "BatchIterator(not made)"
        stats = self.stats()
        return f"BatchIterator(queued={stats.queued}, num_returned={stats.num_returned})"

    @staticmethod
    def check_arguments(
        table: str | Mapping[str, float], batch_size: int | None, **arguments: Any
    ) -> None:
        """Checks arguments of `batches` without a client, for iterators that are made later.

        Raises:
          InvalidArgumentError: If one is out of its range.
          TypeError: If one is of another type, or if there is no such argument.
        """
        BatchOptions.of(table, batch_size, **arguments)

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> Any:
        """Returns the next batch; blocks until there is one.

        Raises:
          StopIteration: After `end_after_ms`, after the last of `epochs`, or if the iterator was
            closed.
          DeadlineExceededError: After `timeout_ms`; the text says what it waited for. Nothing is
            lost: call again.
          ReverbError: If fetching or an update of priorities failed; the text names table and
            address.
        """
        self._updates.check()
        if self._ahead is not None:
            return self._next_ahead(self._ahead)
        pipe = self._pipe
        with pipe.changed:
            if not pipe.elements:
                start = time.monotonic()
                try:
                    self._wait()
                finally:
                    self._wait_s += time.monotonic() - start
            if pipe.elements:
                fetched_at, element = pipe.elements.popleft()
                self._age_s = time.monotonic() - fetched_at
                pipe.num_free += 1
                pipe.changed.notify_all()
                self._num_retrieved += 1
                return element
            if pipe.error is not None:
                raise pipe.error
            raise StopIteration

    def next(self) -> Any:
        """Equal to `next(iterator)`."""
        return self.__next__()

    def ready(self) -> bool:
        """Whether `next` would return or raise at once. Acme's agents learn while it is true."""
        is_ready = bool(self._pipe.elements) if self._ahead is None else self._ahead.is_ready()
        return is_ready or self._has_ended()

    def patience(self) -> "Patience":
        """Returns how long `next` may wait from now on."""
        return Patience(self._timeout_ms, time.monotonic())

    def waits_for(self) -> str:
        """Reason why `next` waits."""
        return self._pipe.waits_for if self._ahead is None else self._ahead.waits_for()

    def retrieved_elements(self) -> int:
        """Number of elements that `next` has returned."""
        return self._num_retrieved

    def stats(self) -> PrefetchStats:
        """Returns the number of elements that are ready, and more; does not block."""
        num_ready = 0 if self._ahead is None else self._ahead.num_ready()
        num_queued = len(self._pipe.elements) + num_ready
        return PrefetchStats(num_queued, self._num_retrieved, self._wait_s, self._age_s)

    def update_priorities(self, keys: object, priorities: object) -> None:
        """Updates priorities in the background, in the order of the calls.

        Blocks only while 16 updates are queued. The next `next`, `update_priorities` or `flush`
        raises their errors. Keys of items that have left the table are ignored.

        Args:
          keys: `[B]`, `batch.info.key`; int64 holds the same bits.
          priorities: `[B]` of any float or integer dtype, at least 0 and finite, or one number for
            all.

        Raises:
          InvalidArgumentError: If there is not one priority for each key.
          TypeError: If `keys` are not integers.
          FailedPreconditionError: If the iterator is closed.
          ReverbError: If an earlier update failed.
        """
        self._updates.put(keys, priorities)

    def flush(self) -> None:
        """Waits until the server has applied all updates of priorities.

        Raises:
          ReverbError: If one failed.
        """
        self._updates.flush()

    def close(self) -> None:
        """Stops prefetching, and waits for updates in transit.

        Queued batches are lost; they count as sampled.
        """
        self._stop()
        if self._ahead is not None:
            self._ahead.close()
        with self._pipe.changed:
            self._pipe.elements.clear()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT_S)
        self._updates.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _has_ended(self) -> bool:
        return self._pipe.has_ended or self._pipe.is_stopped

    def _next_ahead(self, ahead: CoreBatches) -> object:
        """Does what `next` does, for an iterator without the thread."""
        patience = None
        timeout_s = None if self._timeout_ms is None else self._timeout_ms / 1_000
        start = began = time.monotonic()
        while not self._has_ended():
            waited_s = None
            try:
                found = ahead.next(timeout_s if patience is None else patience.rest_s())
                if found is not None:
                    element, self._age_s, waited_s = found
                    self._num_retrieved += 1
                    return element
            except Failure as failure:
                self._pipe.error, self._pipe.has_ended = failure.__cause__, True
                ahead.close()
                break
            finally:
                self._wait_s += time.monotonic() - began if waited_s is None else waited_s
            if not self._has_ended():
                patience = patience or Patience(self._timeout_ms, start)
                patience.check(ahead.waits_for())
                began = time.monotonic()
        if self._pipe.error is not None:
            raise self._pipe.error
        raise StopIteration

    def _wait(self) -> None:
        """Waits for an element or the end, with `changed` held."""
        pipe = self._pipe
        patience = self.patience()
        while not pipe.elements and not self._has_ended():
            patience.check(pipe.waits_for)
            pipe.changed.wait(patience.rest_s())


# The public import path.
BatchIterator.__module__ = "reverb"
