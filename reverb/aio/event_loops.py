# SPDX-License-Identifier: Apache-2.0
"""Waits of coroutines for the core, in every event loop that uses a client."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from reverb.core import native
from reverb.errors import FailedPreconditionError

__all__ = ["EventLoops"]

_Loop = asyncio.AbstractEventLoop


class EventLoops:
    """Makes the calls of a client for the running event loop.

    The first call in a loop opens a pair of sockets, which wakes the loop when calls have ended. It
    is closed by `close`, at the end of `asyncio.run`, or when the client is deleted.
    """

    def __init__(self, client: native.Client) -> None:
        self._client = client
        self._calls: dict[_Loop, native.AsyncClient] = {}
        # A generator that is closed or deleted closes the sockets of its loop.
        self._closers: dict[_Loop, AsyncGenerator[None, None]] = {}
        self._is_closed = False

    async def call(self, method: Callable[..., Any], *arguments: object) -> Any:
        """Makes a call by a method of `native.AsyncClient`; cancelling ends it.

        If the coroutine is cancelled, the attribute `samples` of the exception has the items that
        the core had sampled, if any.
        """
        calls = self._calls.get(asyncio.get_running_loop()) or await self._begin()
        if calls.should_yield():
            await asyncio.sleep(0)
        answer = method(calls, *arguments)
        if type(answer) is not native.Call:
            return answer
        try:
            await answer.future
        except BaseException as error:
            samples = calls.cancel(answer)
            if samples:
                error.__dict__["samples"] = samples
            raise
        return answer.result()

    async def start(self, method: Callable[..., Any], *arguments: object) -> Any:
        """Makes a call, and returns its result, or a `native.Call` to await."""
        calls = self._calls.get(asyncio.get_running_loop()) or await self._begin()
        if calls.should_yield():
            await asyncio.sleep(0)
        return method(calls, *arguments)

    def cancel(self, call: native.Call) -> None:
        """Ends a call of the running loop that nobody awaits any more."""
        calls = self._calls.get(asyncio.get_running_loop())
        if calls is not None:
            calls.cancel(call)

    def check_open(self) -> None:
        """Raises `FailedPreconditionError` after `close`."""
        if self._is_closed:
            raise FailedPreconditionError("This reverb.aio.Client is closed; make a new one")

    async def close(self) -> None:
        """Ends all calls, in other threads' loops soon, and closes the sockets."""
        self._is_closed = True
        running = asyncio.get_running_loop()
        for loop, calls in list(self._calls.items()):
            if loop is running or loop.is_closed():
                _end(loop, calls, self._calls)
            else:
                with contextlib.suppress(RuntimeError):  # It was closed just now.
                    loop.call_soon_threadsafe(_end, loop, calls, self._calls)
        closer = self._closers.pop(running, None)
        if closer is not None:
            await closer.aclose()

    async def _begin(self) -> native.AsyncClient:
        """Prepares the running loop for calls, if this is its first one."""
        self.check_open()
        for loop, calls in list(self._calls.items()):
            if loop.is_closed():
                _end(loop, calls, self._calls)
                self._closers.pop(loop, None)
        loop = asyncio.get_running_loop()
        calls = native.AsyncClient(self._client, loop)
        loop.add_reader(calls.fileno(), calls.wake)
        # A loop closes the asynchronous generators that were started in it before it is closed
        # itself; nothing else reports the end of a loop.
        closer = _closer(loop, calls, self._calls)
        await closer.__anext__()
        self._closers[loop] = closer
        self._calls[loop] = calls
        return calls


async def _closer(
    loop: _Loop, calls: native.AsyncClient, all_calls: dict[_Loop, native.AsyncClient]
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _end(loop, calls, all_calls)


def _end(
    loop: _Loop, calls: native.AsyncClient, all_calls: dict[_Loop, native.AsyncClient]
) -> None:
    """Ends the calls of a loop, in its thread."""
    if all_calls.get(loop) is calls:
        del all_calls[loop]
    descriptor = calls.fileno()
    if descriptor >= 0 and not loop.is_closed():
        loop.remove_reader(descriptor)
    calls.close()
