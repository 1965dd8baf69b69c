# SPDX-License-Identifier: Apache-2.0
"""An iterator whose elements are fetched ahead by a thread of its own."""

import collections
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from reverb import errors

__all__ = ["PrefetchIterator", "Source", "Stopped"]

# How long `next` waits before it logs what it waits for.
_REPORT_AFTER_S = 60.0

# How long `close` waits for the thread, which looks up several times a second.
_JOIN_TIMEOUT_S = 5.0

_logger = logging.getLogger("reverb")


class Stopped(Exception):
    """Raised inside a source when nobody wants its elements any more."""


class Pipe:
    """What the thread and the iterator share. The thread does not know the iterator."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.elements: collections.deque[Any] = collections.deque()
        self.num_free = size
        self.has_ended = False
        self.error: BaseException | None = None
        self.is_stopped = False
        self.waits_for = "the first answer of the server"

    def stop(self) -> None:
        """Tells the thread to end."""
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()

    def check(self, waits_for: str | None = None) -> None:
        """Called by sources several times a second.

        Args:
          waits_for: What the source waits for, if it waits.

        Raises:
          Stopped: If nobody wants its elements any more.
        """
        if waits_for is not None:
            self.waits_for = waits_for
        if self.is_stopped:
            raise Stopped


# Yields up to so many elements, and calls `pipe.check` while it waits. It yields fewer when there
# will be no more.
Source = Callable[[int, Pipe], Iterator[Any]]


class PrefetchIterator:
    """Elements of a source, some of them fetched before they are asked for.

    The thread ends with the iterator: when it is closed, dropped, or when the program exits. An
    error of the source is raised by `next`, after the elements that were fetched before it, and by
    every `next` from then on. Serves one thread at a time.
    """

    def __init__(self, source: Source, size: int, *, timeout_s: float | None = None) -> None:
        """Starts to fetch.

        Args:
          source: Where the elements come from.
          size: How many elements may be fetched ahead, at least 1.
          timeout_s: How long `next` waits for an element, in seconds; `None`: as long as it takes.
        """
        if size < 1:
            raise errors.InvalidArgumentError(f"size must be at least 1, got {size}")
        self._pipe = Pipe(size)
        self._timeout_s = timeout_s
        self._num_retrieved = 0
        self._thread = threading.Thread(
            target=_fetch, args=(source, self._pipe), name="reverb-prefetch", daemon=True
        )
        self._stop = weakref.finalize(self, self._pipe.stop)
        # The exit of a program ends daemon threads wherever they are, and threads of the program
        # that wait in `next` shall not be woken up to raise something.
        self._stop.atexit = False
        self._thread.start()

    def __iter__(self) -> "PrefetchIterator":
        return self

    def __next__(self) -> Any:
        """The next element; blocks until there is one.

        Raises:
          StopIteration: If the source ended, or the iterator was closed.
          DeadlineExceededError: After `timeout_s`, with what it waited for. Ask again if you like.
          ReverbError: If fetching failed.
        """
        pipe = self._pipe
        with pipe.changed:
            if not pipe.elements:
                self._wait()
            if pipe.elements:
                element = pipe.elements.popleft()
                pipe.num_free += 1
                pipe.changed.notify_all()
                self._num_retrieved += 1
                return element
            if pipe.error is not None:
                raise pipe.error
            raise StopIteration

    def next(self) -> Any:
        """The same as `next(iterator)`."""
        return self.__next__()

    def ready(self) -> bool:
        """Whether `next` would return or raise at once. Agents learn while it is true."""
        return bool(self._pipe.elements) or self._has_ended()

    def retrieved_elements(self) -> int:
        """How many elements `next` has returned."""
        return self._num_retrieved

    def close(self) -> None:
        """Stops fetching. What was fetched and not taken is lost; it has counted as sampled."""
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
    """The thread."""
    try:
        while (count := _reserve(pipe)) > 0:
            for element in source(count, pipe):
                with pipe.changed:
                    pipe.check()
                    pipe.elements.append(element)
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
    """Waits until there is room; the number of elements there is room for, 0 at the end."""
    with pipe.changed:
        while not pipe.num_free and not pipe.is_stopped:
            pipe.changed.wait()
        if pipe.is_stopped:
            return 0
        count, pipe.num_free = pipe.num_free, 0
        return count
