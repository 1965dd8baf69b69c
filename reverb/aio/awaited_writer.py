# SPDX-License-Identifier: Apache-2.0
"""The base of the writers of asyncio programs, and how they are made."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

from reverb._checks.arguments import check_at_least
from reverb._writers import leaving
from reverb.aio.event_loops import EventLoops
from reverb.core import native
from reverb.errors import ReverbError

__all__ = ["AwaitedWriter", "OpeningWriter"]

_Native = TypeVar(
    "_Native", native.TrajectoryWriter, native.BatchedTrajectoryWriter, native.SequenceWriter
)

_Self = TypeVar("_Self", bound="AwaitedWriter[Any]")


class AwaitedWriter(Generic[_Native]):
    """Wraps a native writer of `native.AsyncClient`, whose calls never block, and awaits for it."""

    def __init__(self, event_loops: EventLoops, internal_writer: _Native) -> None:
        self._event_loops = event_loops
        self._native = internal_writer

    def __repr__(self) -> str:
        if "_native" not in self.__dict__:
            return f"aio.{type(self).__name__}(not made)"
        return f"aio.{type(self).__name__}(closed={self._native.closed})"

    async def close(self, *, flush: bool | None = True) -> None:
        """Flushes and closes, as the blocking twin does; waits for at most 10 s.

        May be called more than once. A call that is cancelled closes at once.

        Args:
          flush: `False`: closes at once, and abandons unconfirmed items.

        Raises:
          DeadlineExceededError: If items are not confirmed after 10 s. They are abandoned; the text
            counts them, and says what they wait for.
          ReverbError: If the connection failed permanently before all items were confirmed.
        """
        if flush and self._native.num_pending:
            with leaving.delivering(self._native):
                await self._flush(0, leaving.CLOSE_TIMEOUT_MS)
        else:
            leaving.close(self._native, flush)

    async def _throttle(self) -> None:
        """Waits while the writer is faster than its connection, or has `max_pending_bytes`."""
        if self._native.is_over_limit:
            await self._event_loops.call(native.AsyncClient.throttle, self._native)

    async def _flush(self, block_until_num_items: int, timeout_ms: int | None) -> None:
        """Waits until at most `block_until_num_items` items are unconfirmed.

        `timeout_ms` is that of the native `flush`.
        """
        most = check_at_least(0, "block_until_num_items", block_until_num_items, allows_bool=True)
        await self._event_loops.call(native.AsyncClient.flush, self._native, most, timeout_ms)

    async def __aenter__(self: _Self) -> _Self:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flushes and closes, as the blocking twin does at the end of a `with` block.

        Does not flush after an `asyncio.CancelledError`.
        """
        try:
            if self._native.closed:
                return
            if exc_type is None:
                await self._flush(0, None)
            elif not issubclass(exc_type, ReverbError):
                await leaving.leave_awaited(
                    exc_type, self._native, lambda limit: self._flush(0, limit)
                )
            else:
                self._native.report_unconfirmed(leaving.EXCEPTION)
        finally:
            self._native.close()


_Writer = TypeVar("_Writer", bound=AwaitedWriter[Any])


class OpeningWriter(Generic[_Writer]):
    """A writer that is made when this object is awaited, or entered by `async with`."""

    def __init__(self, make: Callable[[], Awaitable[_Writer]]) -> None:
        self._make = make
        self._writer: _Writer | None = None

    def __repr__(self) -> str:
        return "a writer that is made when it is awaited, or entered by `async with`"

    def __await__(self) -> Generator[Any, Any, _Writer]:
        return self._make().__await__()

    async def __aenter__(self) -> _Writer:
        self._writer = await self._make()
        return self._writer

    async def __aexit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        if self._writer is not None:
            await self._writer.__aexit__(exc_type, *exc)
