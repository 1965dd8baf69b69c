# SPDX-License-Identifier: Apache-2.0
"""Batches in memory that is reused, for `async for`."""

from reverb._client.batch_sampler import BatchSamplerBase
from reverb._client.epochs import Epochs
from reverb.replay_sample import ReplayBatch

__all__ = ["BatchSampler"]


class BatchSampler(BatchSamplerBase):
    """An iterator of batches that owns their memory; see `Client.batch_sampler`.

    For `async for`. The twin of `reverb.client.BatchSampler`: the arrays of a batch are valid until
    `num_buffers` more batches were taken. If a task is cancelled while it awaits a batch, the items
    that had arrived are in `CancelledError.samples`, and the next batch is sampled anew. Only one
    task may await it at a time. An `async with` block closes it.

    Example:
      >>> import asyncio
      >>> async def main(address):
      ...     async with reverb.aio.Client(address) as client:
      ...         async with client.batch_sampler("table", 2) as batches:
      ...             async for batch in batches:
      ...                 return batch.data[0].shape
      >>> asyncio.run(main(client.server_address))
      (2, 1, 4)
    """

    _SHOWN = "aio.BatchSampler"

    def __aiter__(self) -> "BatchSampler":
        return self

    async def __anext__(self) -> ReplayBatch:
        """Samples a batch.

        Raises:
          StopAsyncIteration: If the sampler is closed, and after the last epoch.
          ReverbError: As `Client.sample_batch`.
        """
        memory = self._memory
        if memory.is_closed:
            raise StopAsyncIteration
        if self._epochs is not None:
            return await self._next_of_epochs(self._epochs)
        options = self._options | memory.options()
        batch = await self._client.sample_batch(self._table, self._batch_size, **options)
        return memory.kept(batch)

    async def _next_of_epochs(self, epochs: Epochs) -> ReplayBatch:
        """Samples the next batch of the epochs.

        Raises:
          StopAsyncIteration: After the last epoch.
          ReverbError: As `Client.sample_batch`.
        """
        memory = self._memory
        while not memory.is_closed and not epochs.are_over:
            request, unpacks = memory.request(self._table, self._options)
            request.limit_to_epoch(epochs.present)
            batch = await self._client._batch_of_epoch(request, unpacks)
            epochs.note(batch)
            if batch is not None and epochs.keeps(len(batch.info.key), self._batch_size):
                return memory.kept(batch)
        raise StopAsyncIteration

    async def __aenter__(self) -> "BatchSampler":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
