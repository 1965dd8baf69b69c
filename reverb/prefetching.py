# SPDX-License-Identifier: Apache-2.0
"""An iterator whose elements are prefetched by a background thread."""

import collections
import dataclasses
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from reverb import errors

__all__ = ["Pipe", "PrefetchIterator", "PrefetchStats", "Source", "Stopped"]

# How long `next` waits before it logs what it waits for.
_REPORT_AFTER_S = 60.0

# `next` itself fetches an element that needs no waiting, if the program took less than this since
# the last one: there is nothing to do meanwhile, and to hand an element over takes as long.
_BUSY_S = 100e-6
# The thread goes on when such a program has taken this long.
_IDLE_S = 1e-3
# While it has not, the thread looks ever less often, as to look takes the GIL from the program.
_MAX_PAUSE_S = 20e-3

# How long `close` waits for the thread, which checks for a stop several times per second.
_JOIN_TIMEOUT_S = 5.0

_logger = logging.getLogger("reverb")


class Stopped(Exception):
    """Raised inside a source when its iterator was closed."""


@dataclasses.dataclass(frozen=True)
class PrefetchStats:
    """How far a prefetching iterator is ahead, and how old what it returns is.

    Attributes:
      queued: Number of elements that `next` would return at once.
      num_returned: Number of elements that `next` has returned.
      wait_s: How long calls of `next` have waited, in seconds, all together.
      age_s: How long the last element that `next` has returned had been in the queue by then, in
        seconds: so much older than the table its data was. 0.0 before the first one.
    """

    queued: int
    num_returned: int
    wait_s: float
    age_s: float


class Pipe:
    """State shared by the thread and the iterator. The thread has no reference to the iterator."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        # With the times at which they were fetched.
        self.elements: collections.deque[tuple[float, Any]] = collections.deque()
        self.num_free = size
        self.has_ended = False
        self.error: BaseException | None = None
        self.is_stopped = False
        self.waits_for = "the first answer of the server"
        # Whether the thread or `next` uses the source.
        self.is_fetching = False
        # Whether the thread is to fetch as much as fits; if not, it does when the program is idle.
        self.is_wanted = True
        # Whether `next` waits.
        self.is_awaited = False
        self.returned_at = 0.0

    def may_fetch(self) -> bool:
        """Whether the thread is to fetch now, with `changed` held."""
        if self.is_fetching:
            return False
        is_idle = time.monotonic() - self.returned_at >= _IDLE_S
        return self.is_wanted or is_idle or (self.is_awaited and not self.elements)

    def stop(self) -> None:
        """Makes the thread end."""
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()

    def check(self, waits_for: str | None = None) -> None:
        """Checks for a stop; sources call it several times per second.

        Args:
          waits_for: What the source waits for, if it waits.

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
        timeout_s: float | None = None,
        at_once: Callable[[], Any] | None = None,
    ) -> None:
        """Starts to prefetch.

        Args:
          source: Source of the elements.
          size: Number of elements to prefetch, at least 1.
          timeout_s: How long `next` waits for an element, in seconds; `None`: no limit.
          at_once: Returns an element of the source if that needs no waiting, and else `None`. Then
            `next` calls it where a program asks for one element after another.
        """
        if size < 1:
            raise errors.InvalidArgumentError(f"size must be at least 1, got {size}")
        self._pipe = Pipe(size)
        self._timeout_s = timeout_s
        self._at_once = at_once
        self._num_retrieved = 0
        self._wait_s = 0.0
        self._age_s = 0.0
        self._thread = threading.Thread(
            target=_fetch, args=(source, self._pipe), name="reverb-prefetch", daemon=True
        )
        self._stop = weakref.finalize(self, self._pipe.stop)
        # Daemon threads end at the exit of the program anyway, and a thread that waits in `next`
        # must not be woken to raise an error then.
        self._stop.atexit = False
        self._thread.start()

    def __iter__(self) -> "PrefetchIterator":
        return self

    def __next__(self) -> Any:
        """Returns the next element; blocks until there is one.

        Raises:
          StopIteration: If the source ended, or the iterator was closed.
          DeadlineExceededError: After `timeout_s`; the text says what it waited for. May be called
            again.
          ReverbError: If fetching failed.
        """
        pipe = self._pipe
        if self._at_once is not None:
            element = self._fetch_at_once(self._at_once)
            if element is not None:
                return element
        with pipe.changed:
            start = time.monotonic()
            is_busy = self._at_once is not None and start - pipe.returned_at < _BUSY_S
            if not pipe.elements:
                pipe.is_awaited = True
                pipe.changed.notify_all()
                try:
                    self._wait()
                finally:
                    pipe.is_awaited = False
                    self._wait_s += time.monotonic() - start
            if pipe.elements:
                fetched_at, element = pipe.elements.popleft()
                pipe.returned_at = time.monotonic()
                self._age_s = pipe.returned_at - fetched_at
                pipe.num_free += 1
                pipe.is_wanted = not is_busy
                # Where nothing was free, the thread waits for that alone.
                if pipe.is_wanted or pipe.num_free == 1:
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
        return bool(self._pipe.elements) or self._has_ended()

    def retrieved_elements(self) -> int:
        """Number of elements that `next` has returned."""
        return self._num_retrieved

    def stats(self) -> PrefetchStats:
        """Returns how far it is ahead; does not block."""
        return PrefetchStats(
            len(self._pipe.elements), self._num_retrieved, self._wait_s, self._age_s
        )

    def close(self) -> None:
        """Stops prefetching. Elements in the buffer are lost; they count as sampled."""
        self._stop()
        with self._pipe.changed:
            self._pipe.elements.clear()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT_S)

    def __enter__(self) -> "PrefetchIterator":
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes the iterator."""
        self.close()

    def _has_ended(self) -> bool:
        return self._pipe.has_ended or self._pipe.is_stopped

    def _fetch_at_once(self, at_once: Callable[[], Any]) -> Any:
        """Returns an element in the place of the thread; `None` if that is the thread's task."""
        pipe, start = self._pipe, time.monotonic()
        with pipe.changed:
            is_busy = start - pipe.returned_at < _BUSY_S
            if pipe.elements or pipe.is_fetching or self._has_ended() or not is_busy:
                return None
            pipe.is_fetching = True
        element = None
        try:
            element = at_once()
            if element is not None:
                self._num_retrieved += 1
                self._age_s = 0.0
            return element
        except Exception as error:
            pipe.error, pipe.has_ended = error, True
            raise
        finally:
            pipe.returned_at = time.monotonic()
            self._wait_s += pipe.returned_at - start
            # Without the lock: the thread looks at them by itself, and nobody is to be woken.
            pipe.is_wanted = False
            pipe.is_fetching = False

    def _wait(self) -> None:
        """Waits for an element or the end, with `changed` held."""
        pipe, start, reported = self._pipe, time.monotonic(), False
        while not pipe.elements and not self._has_ended():
            waited = time.monotonic() - start
            if self._timeout_s is not None and waited >= self._timeout_s:
                raise errors.DeadlineExceededError(
                    f"no element after {self._timeout_s} s, waiting for {pipe.waits_for}"
                )
            if waited >= _REPORT_AFTER_S and not reported:
                _logger.warning("next(iterator) waits for %s", pipe.waits_for)
                reported = True
            remaining = [] if reported else [_REPORT_AFTER_S - waited]
            if self._timeout_s is not None:
                remaining.append(self._timeout_s - waited)
            pipe.changed.wait(min(remaining, default=None))


def _fetch(source: Source, pipe: Pipe) -> None:
    """The body of the thread."""
    try:
        while (count := _reserve(pipe)) > 0:
            for element in source(count, pipe):
                with pipe.changed:
                    pipe.check()
                    pipe.elements.append((time.monotonic(), element))
                    pipe.changed.notify_all()
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
            pipe.changed.notify_all()


def _reserve(pipe: Pipe) -> int:
    """Waits for free space; returns the number of elements that fit, or 0 after a stop."""
    pause = _IDLE_S
    with pipe.changed:
        pipe.is_fetching = False
        while not (pipe.is_stopped or pipe.has_ended):
            if not pipe.num_free:
                pipe.changed.wait()
                continue
            if pipe.may_fetch():
                pipe.is_fetching = True
                count, pipe.num_free = pipe.num_free, 0
                return count
            # A program in a hurry does not wake it: that would cost as much as what it saves.
            pipe.changed.wait(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)
        return 0
