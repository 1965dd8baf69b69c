# SPDX-License-Identifier: Apache-2.0
"""An iterator whose elements are prefetched by a background thread."""

import collections
import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from reverb import errors
from reverb._checks.pickles import OF_CLIENTS, not_pickled

__all__ = [
    "Ahead",
    "Failure",
    "Patience",
    "Pipe",
    "PrefetchIterator",
    "PrefetchStats",
    "Source",
    "Stopped",
]

_Self = TypeVar("_Self", bound="PrefetchIterator")

# How long `close` waits for the thread, which checks for a stop several times per second.
_JOIN_TIMEOUT_S = 5.0


class Stopped(Exception):
    """Raised inside a source when its iterator was closed."""


@dataclasses.dataclass(frozen=True)
class PrefetchStats:
    """Number of elements that a prefetching iterator has ready, and the age of the last one.

    Example:
      >>> with reverb.batches(client.server_address, "table", batch_size=2) as batches:
      ...     batch = next(batches)
      ...     print(batches.stats().num_returned)
      1

    Attributes:
      queued: Number of elements that `next` would return at once.
      num_returned: Number of elements that `next` has returned.
      wait_s: Total time for which calls of `next` have waited, in seconds.
      age_s: How long the last returned element had been in the queue, in seconds: its data is that
        much older than the table. 0.0 before the first element.
    """

    queued: int
    num_returned: int
    wait_s: float
    age_s: float


class Pipe:
    """State shared by the thread and the iterator, to which the thread has no reference."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        # Pairs of the time at which an element was fetched, and the element.
        self.elements: collections.deque[tuple[float, Any]] = collections.deque()
        self.num_free = size
        self.has_ended = False
        self.error: BaseException | None = None
        self.is_stopped = False
        # Called in the thread when there is an element or the end, for a coroutine that waits.
        self.watcher: Callable[[], None] | None = None
        self.waits_for = "the first answer of the server"

    def stop(self) -> None:
        """Makes the thread end."""
        with self.changed:
            self.is_stopped = True
            self.notify()

    def notify(self) -> None:
        """Wakes all that wait for a change, with `changed` held."""
        self.changed.notify_all()
        if self.watcher is not None:
            self.watcher()

    def check(self, waits_for: str | None = None) -> None:
        """Checks for a stop; sources call it several times per second.

        `waits_for` is why the source waits, for errors and logs; `None`: the last reason stays.

        Raises:
          Stopped: If the iterator was closed.
        """
        if waits_for is not None:
            self.waits_for = waits_for
        if self.is_stopped:
            raise Stopped


# Yields up to the given number of elements, and calls `pipe.check` while it waits. It yields fewer
# only at the end of the data.
Source = Callable[[int, Pipe], Iterator[Any]]


class Failure(Exception):
    """Raised by `Ahead.next` if there will be no more elements; the error is its cause."""


class Ahead(Protocol):
    """Fetches elements ahead without a Python thread."""

    def start(self) -> None:
        """Begins to fetch."""
        ...

    def next(self, timeout_s: float | None) -> tuple[Any, float, float] | None:
        """Returns an element, its age, and the time spent waiting for it, in seconds.

        Returns `None` after the timeout, and after `close`.

        Raises:
          Failure: If fetching has failed. Exceptions of signal handlers pass through.
        """
        ...

    def waits_for(self) -> str:
        """Reason why `next` waits."""
        ...

    def is_ready(self) -> bool:
        """Whether `next` would return or raise at once."""
        ...

    def num_ready(self) -> int:
        """Number of elements that `next` would return at once."""
        ...

    def close(self) -> None:
        """Stops fetching, and drops what is ready."""
        ...


class PrefetchIterator:
    """An iterator over the elements of a source, with prefetching.

    The thread ends when the iterator is closed or deleted, or when the program exits. An error of
    the source is raised by `next` after the elements that were fetched before it, and by every
    later `next`. Not thread-safe.
    """

    def __init__(
        self,
        source: Source,
        size: int,
        *,
        timeout_ms: int | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        """Starts to prefetch `size` elements.

        `ahead` fetches them instead of the source and the thread, if it is given. `next` waits for
        `timeout_ms` milliseconds; `None`: no limit.
        """
        if size < 1:
            raise errors.InvalidArgumentError(f"size must be at least 1, got {size}")
        self._pipe = Pipe(size)
        self._timeout_ms = timeout_ms
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
            return
        self._thread = threading.Thread(
            target=_fetch, args=(source, self._pipe), name="reverb-prefetch", daemon=True
        )
        self._thread.start()

    __reduce__ = not_pickled(OF_CLIENTS)

    def __iter__(self) -> "PrefetchIterator":
        return self

    def __next__(self) -> Any:
        """Returns the next element; blocks until there is one.

        Raises:
          StopIteration: If the source ended, or the iterator was closed.
          DeadlineExceededError: After `timeout_ms`; the text says what it waited for. May be called
            again.
          ReverbError: If fetching failed.
        """
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

    def close(self) -> None:
        """Stops prefetching. Elements in the buffer are lost; they count as sampled."""
        self._stop()
        if self._ahead is not None:
            self._ahead.close()
        with self._pipe.changed:
            self._pipe.elements.clear()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT_S)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _has_ended(self) -> bool:
        return self._pipe.has_ended or self._pipe.is_stopped

    def _next_ahead(self, ahead: Ahead) -> object:
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
        pipe, patience = self._pipe, self.patience()
        while not pipe.elements and not self._has_ended():
            patience.check(pipe.waits_for)
            pipe.changed.wait(patience.rest_s())


class Patience:
    """How long `next` waits before it raises."""

    def __init__(self, timeout_ms: int | None, start: float) -> None:
        self._timeout_ms = timeout_ms
        self._start = start

    def check(self, waits_for: str) -> None:
        """Raises if it is time."""
        rest = self.rest_s()
        if rest is not None and rest <= 0:
            raise errors.DeadlineExceededError(
                f"no element after {self._timeout_ms} ms, waiting for {waits_for}"
            )

    def rest_s(self) -> float | None:
        """Seconds until `check` raises; `None`: never."""
        if self._timeout_ms is None:
            return None
        return max(0.0, self._start + self._timeout_ms / 1_000 - time.monotonic())


def _fetch(source: Source, pipe: Pipe) -> None:
    try:
        while (count := _reserve(pipe)) > 0:
            for element in source(count, pipe):
                with pipe.changed:
                    pipe.check()
                    pipe.elements.append((time.monotonic(), element))
                    pipe.notify()
                count -= 1
            if count > 0:
                return
    except Stopped:
        pass
    except BaseException as error:
        pipe.error = error
    finally:
        with pipe.changed:
            pipe.has_ended = True
            pipe.notify()


def _reserve(pipe: Pipe) -> int:
    """Waits for free space; returns the number of elements that fit, or 0 after a stop."""
    with pipe.changed:
        while not pipe.num_free and not pipe.is_stopped:
            pipe.changed.wait()
        count, pipe.num_free = pipe.num_free, 0
        return 0 if pipe.is_stopped else count


# The public import path.
PrefetchStats.__module__ = "reverb"
