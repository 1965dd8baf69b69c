# SPDX-License-Identifier: Apache-2.0
"""Batches that are fetched ahead, for `async for`."""

import asyncio
import contextlib
import time
from typing import Any

from reverb._batches import iterator as blocking
from reverb._batches.prefetching import PrefetchStats
from reverb._batches.source import CoreBatches
from reverb.aio.event_loops import EventLoops
from reverb.core import native

__all__ = ["BatchIterator"]


class BatchIterator:
    """An iterator over batches that are fetched ahead, for `async for`; see `Client.batches`.

    The twin of `reverb.BatchIterator`. Only one task may await a batch at a time. If it is
    cancelled, no batch is lost: the next one to ask gets it. The end of an `async with` block
    closes it.

    Example:
      >>> import asyncio
      >>> async def main(address):
      ...     async with reverb.aio.Client(address) as client:
      ...         async with client.batches("table", 2) as batches:
      ...             async for batch in batches:
      ...                 return batch.data[0].shape
      >>> asyncio.run(main(client.server_address))
      (2, 1, 4)
    """

    def __init__(self, iterator: blocking.BatchIterator, client: native.Client) -> None:
        """Takes the iterator whose `next` is awaited."""
        self._iterator = iterator
        # They outlive the client, so that the iterator continues when that is closed.
        self._loops = EventLoops(client)
        self._is_closed = False
        self._is_awaited = False

    def __repr__(self) -> str:
        return f"aio.{self.__dict__.get('_iterator', 'BatchIterator(not made)')}"

    def __aiter__(self) -> "BatchIterator":
        return self

    async def __anext__(self) -> Any:
        """Returns the next batch; waits until there is one.

        Raises:
          StopAsyncIteration: After `end_after_ms`, or if the iterator was closed.
          DeadlineExceededError: After `timeout_ms`; the text says what it waited for. Nothing is
            lost: call again.
          RuntimeError: If another task awaits a batch.
          ReverbError: If fetching or an update of priorities failed; the text names table and
            address.
        """
        if self._is_awaited:
            raise RuntimeError("another task awaits a batch of this iterator")
        iterator = self._iterator
        if not iterator.ready():
            await self._wait()
        try:
            return next(iterator)
        except StopIteration:
            raise StopAsyncIteration from None

    async def _wait(self) -> None:
        """Waits until `next` would return or raise at once."""
        iterator, start = self._iterator, time.monotonic()
        patience = iterator.patience()
        self._is_awaited = True
        try:
            while not iterator.ready():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._arrival(), patience.rest_s())
                if not iterator.ready():
                    patience.check(iterator.waits_for())
        finally:
            self._is_awaited = False
            iterator._wait_s += time.monotonic() - start
            if self._is_closed:
                await self._loops.close()

    async def _arrival(self) -> None:
        """Waits for a batch or the end."""
        ahead = self._iterator._ahead
        if isinstance(ahead, CoreBatches):
            await self._loops.call(native.AsyncClient.batch_arrival, ahead.native)
            return
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        pipe = self._iterator._pipe

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # The loop was closed.
                loop.call_soon_threadsafe(arrived.set)

        pipe.watcher = wake
        try:
            if not self._iterator.ready():
                await arrived.wait()
        finally:
            pipe.watcher = None

    def ready(self) -> bool:
        """Whether the next batch would be there at once, or an error."""
        return self._iterator.ready()

    def stats(self) -> PrefetchStats:
        """Returns the number of batches that are ready, and more; does not wait."""
        return self._iterator.stats()

    async def update_priorities(self, keys: object, priorities: object) -> None:
        """Updates priorities in the background, in the order of the calls.

        Waits only while 16 updates are queued. Otherwise as `reverb.BatchIterator`.

        Raises:
          InvalidArgumentError: If there is not one priority for each key.
          TypeError: If `keys` are not integers.
          FailedPreconditionError: If the iterator is closed.
          ReverbError: If an earlier update failed.
        """
        await asyncio.to_thread(self._iterator.update_priorities, keys, priorities)

    async def flush(self) -> None:
        """Waits until the server has applied all updates of priorities.

        Raises:
          ReverbError: If one failed.
        """
        await asyncio.to_thread(self._iterator.flush)

    async def close(self) -> None:
        """Stops prefetching, and waits for updates in transit, for a few seconds at most.

        Queued batches are lost; they count as sampled. A task that awaits a batch gets
        `StopAsyncIteration`.
        """
        self._is_closed = True
        await asyncio.to_thread(self._iterator.close)
        # A task that awaits a batch closes them itself, as it would be cancelled here.
        if not self._is_awaited:
            await self._loops.close()

    async def __aenter__(self) -> "BatchIterator":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# The public import path.
BatchIterator.__module__ = "reverb.aio"
