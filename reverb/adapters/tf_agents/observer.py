# SPDX-License-Identifier: Apache-2.0
"""The base of all observers: their tables, and a writer that is opened and closed."""

import abc
import math
import operator
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

import reverb
from reverb import errors

__all__ = ["Observer", "ObserverClosedError", "UnknownTableError", "at_least_one", "number"]

_Self = TypeVar("_Self", bound="Observer")


class ObserverClosedError(errors.FailedPreconditionError, ValueError):
    """The observer has no writer: it was closed, or a failure closed it."""


class UnknownTableError(errors.TableNotFoundError, KeyError):
    """The server has no table of that name; the text lists its tables."""

    __str__ = Exception.__str__  # `KeyError` would quote the text.


class Observer(abc.ABC):
    """The base of the observers.

    Not thread-safe. A `with` block closes the observer. A failed connection closes it too:
    confirmed items stay in the tables, and `open` starts again.
    """

    def __init__(self, py_client: reverb.Client, table_name: str | Sequence[str]) -> None:
        self._py_client = py_client
        self._table_names = [table_name] if isinstance(table_name, str) else list(table_name)
        if not self._table_names:
            raise errors.InvalidArgumentError("table_name must name at least one table, got none")
        self._writer: Any = None
        # The error that closed the observer, for error texts.
        self._failure = ""

    @property
    def py_client(self) -> reverb.Client:
        """The client that the observer writes through."""
        return self._py_client

    def get_table_signature(self) -> Any:
        """Returns the current signature of the first table; `None` if it has none.

        Raises:
          UnknownTableError: If there is no such table; a `KeyError`.
          UnavailableError: If no server answers.
        """
        return self._check_tables()[0].signature

    def flush(self, *, timeout_ms: int | None = None) -> None:
        """Blocks until the server has confirmed all items that were written.

        A rate limiter may delay that; the log says why (`reverb.logging.report_waits`). Frames that
        are in no item yet are kept.

        Args:
          timeout_ms: How long to block, in milliseconds; `None`: no limit; 0: do not wait.

        Raises:
          DeadlineExceededError: After `timeout_ms`; the text says what it waited for. The items
            remain queued.
          ObserverClosedError: If the observer is closed; a `ValueError`.
          ReverbError: If the connection failed permanently; the observer is then closed.
        """
        writer = self._open_writer()
        try:
            if timeout_ms is None:
                writer.flush()
            else:
                writer.flush(0, timeout_ms=max(1, timeout_ms))
        except errors.ReverbError as error:
            self._fail(error)
            raise

    def open(self) -> None:
        """Opens the observer; does nothing if it is open.

        Frames from before it was closed are dropped.

        Raises:
          UnavailableError: If no server answers.
        """
        if self._writer is None:
            self._writer = self._make_writer()
            self._failure = ""
            self._start_episode()

    def close(self) -> None:
        """Closes the observer; does nothing if it is closed.

        Drops frames that are in no item yet, and blocks until all items are confirmed.

        Raises:
          ReverbError: If the connection failed permanently; the observer is closed in any case.
        """
        if self._writer is None:
            return
        try:
            self._finish()
        finally:
            self._abandon()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Closes. After an exception in the block it flushes as a writer does.

        That is for 2 s at most, and not after a `ReverbError`, a `KeyboardInterrupt` and the like.
        """
        if exc_type is None:
            self.close()
            return
        try:
            if self._writer is not None:
                self._writer.__exit__(exc_type, *exc)
        finally:
            self._abandon()

    def _check_tables(self) -> list[Any]:
        """Returns the `TableInfo`s of the tables; raises if the server lacks one of them."""
        tables = self._py_client.server_info()
        try:
            return [tables[name] for name in self._table_names]
        except KeyError as error:
            raise UnknownTableError(
                f"table_name: the server at {self._py_client.server_address} has no table named "
                f"{error.args[0]}; its tables are: {', '.join(sorted(tables))}"
            ) from None

    @abc.abstractmethod
    def _make_writer(self) -> Any:
        """Makes a new writer."""

    @abc.abstractmethod
    def _start_episode(self) -> None:
        """Resets the counters to those of an episode without frames."""

    def _finish(self) -> None:
        """Drops the unfinished episode, and blocks until all items are confirmed."""
        self._start_episode()
        try:
            self._end_writer_episode()
        except errors.ReverbError as error:
            self._fail(error)
            raise

    def _end_writer_episode(self) -> None:
        self._writer.end_episode()

    def _abandon(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close(flush=False)

    def _fail(self, error: errors.ReverbError) -> None:
        """Closes after an error that the writer cannot recover from."""
        recoverable = (errors.InvalidArgumentError, errors.DeadlineExceededError)
        if not isinstance(error, recoverable):
            self._abandon()
            self._failure = f" ({error})"

    def _open_writer(self) -> Any:
        """Returns the writer; raises with the reason if the observer is closed."""
        if self._writer is None:
            raise ObserverClosedError(
                f"the observer is closed{self._failure}: call open() or reset() to use it again"
            )
        return self._writer


def number(argument: str, value: Any) -> float:
    """Returns a priority as a float; `reverb.MAX_PRIORITY` is one.

    Raises:
      InvalidArgumentError: If it is not a number, or NaN.
    """
    if value is reverb.MAX_PRIORITY:
        return value
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "iuf" or math.isnan(array):
        raise errors.InvalidArgumentError(f"{argument} must be a number, got {value!r}")
    return float(array)


def at_least_one(argument: str, value: Any) -> int:
    """Returns the value as an int.

    Raises:
      InvalidArgumentError: If it is below 1, or not an integer.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise errors.InvalidArgumentError(
            f"{argument} must be an integer of at least 1, got {value!r}"
        )
    return count
