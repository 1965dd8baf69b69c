# SPDX-License-Identifier: Apache-2.0
"""How a program leaves a writer: by `close`, by an exception in its block, or at its exit."""

import atexit
import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

from reverb import errors

__all__ = [
    "CLOSE_TIMEOUT_MS",
    "EXCEPTION",
    "STOPPED",
    "close",
    "delivering",
    "leave",
    "leave_awaited",
    "leave_closing",
    "reason_of",
    "report_at_exit",
    "skips_flush_as_dm_reverb",
]

# Limit of the flush of a `close`.
CLOSE_TIMEOUT_MS = 10_000

# Limit of the flush after an exception. The program is about to fail, and must not hang instead.
FLUSH_TIMEOUT_MS = 2_000

# dm-reverb skips the flush at the end of a `with` block after a `ReverbError` or a
# `DeadlineExceededError`, and flushes after its other errors. Those are builtins in dm-reverb; here
# they are these subclasses of `ReverbError`.
_NEW_ERRORS = (
    errors.CancelledError,
    errors.DataLossError,
    errors.FailedPreconditionError,
    errors.InternalError,
    errors.InvalidArgumentError,
    errors.PermissionDeniedError,
    errors.ResourceExhaustedError,
    errors.TableNotFoundError,
    errors.UnauthenticatedError,
    errors.UnavailableError,
    errors.UnimplementedError,
)


# How a program has left a writer, in the log's line about unconfirmed items. The core has one more,
# for a writer that is deleted.
STOPPED = "the run of its recorder was stopped."
EXCEPTION = "an exception left its block."
_CLOSED = (
    "it was closed without a flush, which abandons them. Flush it first, or call close(flush=True)."
)
_INTERRUPTED = "its close() ended early, which abandons them."
_EXIT = "the program ended without a flush. Flush it, or use it in a with block."


class _Writer(Protocol):
    def report_unconfirmed(self, how: str) -> None: ...


class _Flushing(_Writer, Protocol):
    @property
    def closed(self) -> bool: ...
    @property
    def num_pending(self) -> int: ...
    def flush(self, block_until_num_items: int, timeout_ms: int | None) -> None: ...
    def close(self) -> None: ...


_open: "weakref.WeakSet[Any]" = weakref.WeakSet()


def report_at_exit(writer: object) -> None:
    """Logs what a writer has not confirmed, if the program ends before it is closed or deleted.

    `writer` has its native writer as `_writer`.
    """
    _open.add(writer)
    _report_at_exit_of_worker(os.getpid())


@functools.cache
def _report_at_exit_of_worker(_: int) -> None:
    """Registers the report in a worker of `multiprocessing`, which may run no `atexit`."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        # A worker forgets the finalizers of its parent.
        sys.modules["multiprocessing.util"].Finalize(None, _report_open_writers, exitpriority=0)


@atexit.register
def _report_open_writers() -> None:
    for writer in list(_open):
        writer._writer.report_unconfirmed(_EXIT)


def close(writer: _Flushing, flush: bool | None) -> None:
    """Closes a native writer, after a flush or at once; `None`: at once, with a line of the log."""
    if flush and writer.num_pending:
        with delivering(writer):
            writer.flush(0, CLOSE_TIMEOUT_MS)
        return
    if flush is None:
        writer.report_unconfirmed(_CLOSED)
    writer.close()


@contextlib.contextmanager
def delivering(writer: _Flushing) -> Iterator[None]:
    """Closes a native writer after the block, which flushes it for `CLOSE_TIMEOUT_MS`."""
    try:
        yield
    except errors.DeadlineExceededError as error:
        raise errors.DeadlineExceededError(
            f"close did not finish within {CLOSE_TIMEOUT_MS / 1000:g} s, and abandons what is not "
            f"confirmed. {reason_of(error)}"
        ) from None
    except BaseException as error:
        # Another thread has closed it, and has logged what was lost.
        if not (writer.closed and isinstance(error, errors.FailedPreconditionError)):
            writer.report_unconfirmed(_INTERRUPTED)
            raise
    finally:
        writer.close()


def reason_of(error: errors.DeadlineExceededError) -> str:
    """Returns the part of a flush's error that says what it waited for, without its own limit."""
    text = str(error)
    return text.partition(" ms. ")[2] or text


def leave(exc_type: type[BaseException], writer: _Writer, flush: Callable[[int], None]) -> None:
    """Flushes if the exception is an `Exception`, and logs what is not confirmed then.

    `flush` waits for so many milliseconds at most. Its errors do not replace the exception of the
    block. Ctrl-C ends it and is raised.
    """
    try:
        if issubclass(exc_type, Exception):
            with contextlib.suppress(errors.ReverbError):
                flush(FLUSH_TIMEOUT_MS)
    finally:
        writer.report_unconfirmed(EXCEPTION)


def leave_closing(
    exc_type: type[BaseException] | None, writer: _Flushing, flush: Callable[[], None]
) -> None:
    """Closes a native writer at the end of its block, after `flush` or what an exception allows.

    Flushes for at most 2 s after an `Exception`. Only closes after a `ReverbError`, or if the block
    has closed the writer.
    """
    try:
        if writer.closed:
            return
        if exc_type is None:
            flush()
        elif not issubclass(exc_type, errors.ReverbError):
            leave(exc_type, writer, lambda limit: writer.flush(0, limit))
        else:
            writer.report_unconfirmed(EXCEPTION)
    finally:
        writer.close()


async def leave_awaited(
    exc_type: type[BaseException], writer: _Writer, flush: Callable[[int], Awaitable[None]]
) -> None:
    """The twin of `leave`. It awaits nothing after an exception that is no `Exception`."""
    try:
        if issubclass(exc_type, Exception):
            with contextlib.suppress(errors.ReverbError):
                await flush(FLUSH_TIMEOUT_MS)
    finally:
        writer.report_unconfirmed(EXCEPTION)


def skips_flush_as_dm_reverb(exc_type: type[BaseException]) -> bool:
    """Whether dm-reverb's trajectory writer does not flush after this exception."""
    return issubclass(exc_type, errors.ReverbError) and not issubclass(exc_type, _NEW_ERRORS)
