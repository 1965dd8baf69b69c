# SPDX-License-Identifier: Apache-2.0
"""How long the steps of a recorder wait for their items."""

import concurrent.futures
import copy
import math
import time
from typing import NamedTuple, Protocol

from reverb import errors
from reverb._writers.leaving import CLOSE_TIMEOUT_MS, reason_of
from reverb.client import Client
from reverb.reverb_types import TableInfo
from reverb.trajectory_writer import BatchedTrajectoryWriter

__all__ = ["SERVER_IS_GONE", "STOPPED_CLOSE_TIMEOUT_MS", "Stop", "Waiting"]

# How soon a wait notices that `stop` is set, in milliseconds.
STOP_POLL_MS = 50

# Limit of the wait of `close` after `stop` is set, in milliseconds.
STOPPED_CLOSE_TIMEOUT_MS = 2_000

# Errors of calls when the server is gone; the second one if another server has its port.
SERVER_IS_GONE = (errors.UnavailableError, errors.TableNotFoundError)

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

    def tables_of(self, client: Client) -> dict[str, TableInfo] | None:
        """Asks the server for its tables; `None` if the run ends before it has answered.

        Raises:
          UnavailableError: If no server answers.
        """
        if self.stop is None:
            return client.server_info()
        # The end of a copy ends its call, and leaves the client of the program alone.
        with concurrent.futures.ThreadPoolExecutor(1) as thread, copy.copy(client) as asking:
            if self.is_stopped:
                return None
            asked = thread.submit(asking.server_info)
            while not concurrent.futures.wait([asked], STOP_POLL_MS / 1000).done:
                if self.is_stopped:
                    return None
            return asked.result()

    def until_confirmed(self, writer: BatchedTrajectoryWriter, num_items: int) -> bool:
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
        limit_s = math.inf if self.timeout_s is None else self.timeout_s
        text = (
            f"step_timeout_s={limit_s:g} has passed. The step is recorded; what the environment "
            "returned is in the result of this error."
        )
        return self._poll(writer, num_items, limit_s, text)

    def until_flushed(self, writer: BatchedTrajectoryWriter) -> bool:
        """Like `until_confirmed` for all items, without a limit."""
        if self.stop is not None:
            return self._poll(writer, 0, math.inf, "")
        writer.flush()
        return True

    def until_all_confirmed(self, writer: BatchedTrajectoryWriter) -> bool:
        """Like `until_confirmed` for all items, with the limit of `close`."""
        limit_s = CLOSE_TIMEOUT_MS / 1000
        return self._poll(writer, 0, limit_s, f"close did not finish within {limit_s:g} s.")

    def _poll(
        self, writer: BatchedTrajectoryWriter, num_items: int, limit_s: float, text: str
    ) -> bool:
        deadline = time.monotonic() + limit_s
        while not self.is_stopped:
            left_ms = (deadline - time.monotonic()) * 1000
            try:
                if left_ms <= 0:
                    writer.flush(num_items, timeout_ms=1)  # Its error has the reason.
                    return True
                if writer._is_confirmed_within(num_items, math.ceil(min(left_ms, STOP_POLL_MS))):
                    return True
            except errors.DeadlineExceededError as error:
                raise errors.DeadlineExceededError(f"{text} {reason_of(error)}") from None
            except SERVER_IS_GONE:
                if not self.is_stopped:
                    raise
        return False
