# SPDX-License-Identifier: Apache-2.0
"""Batches in memory that is reused."""

from typing import Any

import tree

from reverb._checks.arguments import check_at_least
from reverb._client.batch_request import BatchRequest
from reverb._client.epochs import Epochs
from reverb.replay_sample import ReplayBatch
from reverb.shown_text import shown

__all__ = ["BatchMemory", "BatchSampler", "BatchSamplerBase"]


class BatchSamplerBase:
    """The common part of both batch samplers: arguments, memory and epochs."""

    # Beginning of the text of `repr`.
    _SHOWN = "BatchSampler"

    def __init__(
        self,
        client: Any,
        table: str,
        batch_size: int,
        *,
        num_buffers: int,
        epochs: int | None,
        drop_last: bool,
        **options: Any,
    ) -> None:
        """Takes the arguments of `Client.batch_sampler`."""
        self._client = client
        self._table = table
        self._batch_size = batch_size
        self._memory = BatchMemory(batch_size, num_buffers)
        self._options = options
        self._epochs = None if epochs is None else Epochs(epochs, drop_last)

    @shown
    def __repr__(self) -> str:
        if "_memory" not in self.__dict__:
            return f"{self._SHOWN}(not made)"
        arguments = f"table={self._table!r}, batch_size={self._batch_size}"
        return f"{self._SHOWN}({arguments}, closed={self._memory.is_closed})"

    def close(self) -> None:
        """Ends the iterator and releases its memory; batches that were taken stay valid."""
        self._memory.close()


class BatchSampler(BatchSamplerBase):
    """An iterator of batches that owns their memory; see `Client.batch_sampler`.

    The arrays of a batch are valid until `num_buffers` more batches were taken; then they hold
    another batch. Copy what you need for longer. A batch that is smaller than requested, and one
    with columns of strings, has its own memory.

    Not to be shared by threads. A `with` block closes it.
    """

    def __iter__(self) -> "BatchSampler":
        return self

    def __next__(self) -> ReplayBatch:
        """Samples a batch.

        Raises:
          StopIteration: If the sampler is closed, and after the last epoch.
          ReverbError: As `Client.sample_batch`.
        """
        memory = self._memory
        if memory.is_closed:
            raise StopIteration
        if self._epochs is not None:
            return self._next_of_epochs(self._epochs)
        options = self._options | memory.options()
        return memory.kept(self._client.sample_batch(self._table, self._batch_size, **options))

    def _next_of_epochs(self, epochs: Epochs) -> ReplayBatch:
        """Samples the next batch of the epochs.

        Raises:
          StopIteration: After the last epoch.
          ReverbError: As `Client.sample_batch`.
        """
        memory = self._memory
        while not memory.is_closed and not epochs.are_over:
            request, unpacks = memory.request(self._table, self._options)
            request.limit_to_epoch(epochs.present)
            batch = self._client._batch_of_epoch(request, unpacks)
            epochs.note(batch)
            if batch is not None and epochs.keeps(len(batch.info.key), self._batch_size):
                return memory.kept(batch)
        raise StopIteration

    def __enter__(self) -> "BatchSampler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BatchMemory:
    """The memory of the last few batches, written in turn.

    Attributes:
      is_closed: Whether `close` was called.
    """

    def __init__(self, batch_size: int, num_buffers: int) -> None:
        self.is_closed = False
        self._batch_size = batch_size
        self._memories: list[Any] = [None] * check_at_least(1, "num_buffers", num_buffers)
        self._next = 0

    def options(self) -> dict[str, Any]:
        """Returns the memory for the next batch, as an option of `sample_batch`."""
        memory = self._memories[self._next]
        return {} if memory is None else {"out": memory}

    def request(self, table: str, options: dict[str, Any]) -> tuple[BatchRequest, bool]:
        """Returns a request for the next batch, and whether it is nested like the signature."""
        others = {"ragged": "error", "pad": 0, "pad_to_multiple_of": None, "out": None}
        others |= options | self.options()
        unpacks = others.pop("unpack_as_table_signature")
        return BatchRequest(table, self._batch_size, **others), unpacks

    def kept(self, batch: ReplayBatch) -> ReplayBatch:
        """Returns the batch, and keeps its memory if it can be reused."""
        if self._memories[self._next] is None and self._is_usable(batch):
            self._memories[self._next] = batch
        self._next = (self._next + 1) % len(self._memories)
        return batch

    def _is_usable(self, batch: ReplayBatch) -> bool:
        is_whole = len(batch.info.key) == self._batch_size
        return is_whole and not self.is_closed and _has_numbers(batch.data)

    def close(self) -> None:
        """Releases the memory."""
        self.is_closed = True
        self._memories = [None] * len(self._memories)


def _has_numbers(data: Any) -> bool:
    """Returns whether all columns have memory that can be reused."""
    return all(leaf is None or leaf.dtype.kind != "O" for leaf in tree.flatten(data))


# The public import path.
BatchSampler.__module__ = "reverb.client"
