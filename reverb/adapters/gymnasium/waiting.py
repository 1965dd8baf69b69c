# SPDX-License-Identifier: Apache-2.0
"""How long the steps of a recorder wait for their items."""

import math
import time
from typing import Any, NamedTuple, Protocol

from reverb import errors

__all__ = ["Stop", "Waiting", "reason_of"]

# How soon a wait notices that `stop` is set, in milliseconds.
STOP_POLL_MS = 50

# Limits of the wait of `close`, in milliseconds, before and after `stop` is set.
CLOSE_TIMEOUT_MS = 10_000
STOPPED_CLOSE_TIMEOUT_MS = 2_000

# The longest wait for a step, in seconds: a year.
MAX_STEP_TIMEOUT_S = 31_536_000


class Stop(Protocol):
    """The end of a run: an event of `threading` or `multiprocessing`, or anything like it."""

    def is_set(self) -> bool:
        """Whether the run has ended."""
        ...


class Waiting(NamedTuple):
    """The end of a run and the limit of a step's wait, as a recorder gets them.

    `timeout_s` is in seconds; `None`: no limit.
    """

    stop: Stop | None = None
    timeout_s: float | None = None

    def checked(self) -> "Waiting":
        """Returns itself.

        Raises:
          TypeError: If `stop` has no `is_set`.
          InvalidArgumentError: If `timeout_s` is out of its range.
        """
        if self.stop is not None and not callable(getattr(self.stop, "is_set", None)):
            raise TypeError(
                f"stop must have a method is_set, like threading.Event, got {self.stop!r}"
            )
        if self.timeout_s is not None and not 0 <= self.timeout_s <= MAX_STEP_TIMEOUT_S:
            raise errors.InvalidArgumentError(
                f"step_timeout_s must be from 0 to {MAX_STEP_TIMEOUT_S}, or None for no limit, got "
                f"{self.timeout_s}"
            )
        return self

    @property
    def is_stopped(self) -> bool:
        """Whether the run has ended."""
        return self.stop is not None and bool(self.stop.is_set())

    def until_confirmed(self, writer: Any, num_items: int) -> bool:
        """Blocks until at most `num_items` items of a writer are unconfirmed, or the run ends.

        Returns:
          Whether so few are unconfirmed. `False`: the run has ended.

        Raises:
          DeadlineExceededError: After `timeout_s`; the text has the reason.
          ReverbError: If the connection failed for good.
        """
        if self.stop is None and self.timeout_s is None:
            writer.flush(num_items)
            return True
        deadline = time.monotonic() + (math.inf if self.timeout_s is None else self.timeout_s)
        while not self.is_stopped:
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0:
                self._raise_reason(writer, num_items)
                return True
            try:
                if writer._is_confirmed_within(num_items, math.ceil(min(left_ms, STOP_POLL_MS))):
                    return True
            except (errors.UnavailableError, errors.TableNotFoundError):
                # The server is gone, or another one has its port.
                if not self.is_stopped:
                    raise
        return False

    def _raise_reason(self, writer: Any, num_items: int) -> None:
        """Raises the error of the timeout, unless the items are confirmed by now."""
        try:
            writer.flush(num_items, timeout_ms=1)
        except errors.DeadlineExceededError as error:
            raise errors.DeadlineExceededError(
                f"step_timeout_s={self.timeout_s:g} has passed. The step is recorded; what the "
                f"environment returned is in the result of this error. {reason_of(error)}"
            ) from None


def reason_of(error: errors.DeadlineExceededError) -> str:
    """Returns the part of a flush's error that tells what it waited for, without its own limit."""
    text = str(error)
    return text.partition(" ms. ")[2] or text
