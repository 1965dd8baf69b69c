# SPDX-License-Identifier: Apache-2.0
"""Iterators of items for `async for`."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from reverb.aio.event_loops import EventLoops
from reverb.core import native

__all__ = ["SampleIterator"]

_Item = TypeVar("_Item")


class SampleIterator(Generic[_Item]):
    """Yields the items of `Client.sample` or `Client.scan`, for `async for`.

    Nothing happens before the first item is awaited. If a task is cancelled while it awaits an
    item, its request is withdrawn from the server, and the iterator can be used again. The next
    item is one that had already arrived, or is requested anew; an item in transit counts as
    sampled. Only one task may await the iterator at a time.

    Example:
      >>> import asyncio
      >>> async def main(address):
      ...     async with reverb.aio.Client(address) as client:
      ...         return [len(steps) async for steps in client.sample("table", num_samples=2)]
      >>> asyncio.run(main(client.server_address))
      [1, 1]
    """

    def __init__(
        self, event_loops: EventLoops, start: Callable[[], Awaitable[native.Sampler | None]]
    ) -> None:
        """Takes a function that makes the sampler, or `None` if there are no items."""
        self._event_loops = event_loops
        self._start = start
        self._sampler: native.Sampler | None = None
        self._is_closed = False
        # An item that arrived when its task was cancelled.
        self._arrived: list[Any] = []

    def __repr__(self) -> str:
        if "_arrived" not in self.__dict__:
            return "aio.SampleIterator(not made)"
        has_begun = self._sampler is not None
        return f"aio.SampleIterator(has_begun={has_begun}, closed={self._is_closed})"

    def __aiter__(self) -> "SampleIterator[_Item]":
        return self

    async def __anext__(self) -> _Item:
        """Waits for the next item.

        Raises:
          StopAsyncIteration: After the last item, and after `aclose`.
          ReverbError: As `Client.sample` and `Client.scan`.
        """
        if self._arrived:
            return self._arrived.pop()
        if self._is_closed:
            raise StopAsyncIteration
        if self._sampler is None:
            self._sampler = await self._start()
            if self._sampler is None:
                self._is_closed = True
                raise StopAsyncIteration
        sample = await self._event_loops.start(native.AsyncClient.next_sample, self._sampler)
        if type(sample) is native.Call:
            call = sample
            try:
                await call.future
            except BaseException:
                if call.is_answered():
                    self._keep(call)
                self._event_loops.cancel(call)
                raise
            sample = call.result()
        if sample is None:
            raise StopAsyncIteration
        return sample

    def _keep(self, call: native.Call) -> None:
        """Keeps the item of a call that was cancelled for the next one."""
        try:
            sample = call.result()
        except Exception:
            return  # The next call fails for the same reason.
        if sample is not None:
            self._arrived.append(sample)

    async def aclose(self) -> None:
        """Ends the iteration and withdraws its requests."""
        self._is_closed = True
        self._arrived.clear()
        self._sampler = None
