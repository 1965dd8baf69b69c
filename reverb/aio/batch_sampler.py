# SPDX-License-Identifier: Apache-2.0
"""Batches in memory that is reused, for `async for`."""

from reverb._client.batch_sampler import BatchSamplerBase
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
        while (wanted := self._request()) is not None:
            batch = await self._client._requested_batch(*wanted)
            if self._keeps(batch):
                return self._memory.kept(batch)
        raise StopAsyncIteration

    async def __aenter__(self) -> "BatchSampler":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
