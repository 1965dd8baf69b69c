# SPDX-License-Identifier: Apache-2.0
"""A background thread that fetches elements ahead, and what it shares with their iterator."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from reverb import errors

__all__ = ["Failure", "Patience", "Pipe", "PrefetchStats", "Source", "Stopped", "start_thread"]


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
    """Raised by `CoreBatches.next` if there will be no more elements; the error is its cause."""


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


def start_thread(source: Source, pipe: Pipe) -> threading.Thread:
    """Starts the thread that fetches as many elements ahead as the pipe has room for.

    It ends when the pipe is stopped, or when the program exits.
    """
    thread = threading.Thread(
        target=_fetch, args=(source, pipe), name="reverb-prefetch", daemon=True
    )
    thread.start()
    return thread


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
