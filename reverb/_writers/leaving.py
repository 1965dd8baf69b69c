# SPDX-License-Identifier: Apache-2.0
"""The end of a writer's block that an exception has left."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from reverb import errors

__all__ = ["leave", "leave_awaited", "skips_flush_as_dm_reverb"]

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


class _Writer(Protocol):
    def report_unconfirmed(self) -> None: ...


def leave(exc_type: type[BaseException], writer: _Writer, flush: Callable[[int], None]) -> None:
    """Flushes if the exception is an `Exception`, and logs what is not confirmed then.

    No error of `flush`, which waits for so many milliseconds at most, takes the place of what the
    block raised. Ctrl-C ends it and is raised.
    """
    try:
        if issubclass(exc_type, Exception):
            with contextlib.suppress(errors.ReverbError):
                flush(FLUSH_TIMEOUT_MS)
    finally:
        writer.report_unconfirmed()


async def leave_awaited(
    exc_type: type[BaseException], writer: _Writer, flush: Callable[[int], Awaitable[None]]
) -> None:
    """The twin of `leave`. It awaits nothing after an exception that is no `Exception`."""
    try:
        if issubclass(exc_type, Exception):
            with contextlib.suppress(errors.ReverbError):
                await flush(FLUSH_TIMEOUT_MS)
    finally:
        writer.report_unconfirmed()


def skips_flush_as_dm_reverb(exc_type: type[BaseException]) -> bool:
    """Whether dm-reverb's trajectory writer does not flush after this exception."""
    return issubclass(exc_type, errors.ReverbError) and not issubclass(exc_type, _NEW_ERRORS)
