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

    def _request(self) -> tuple[BatchRequest, bool] | None:
        """Returns what `BatchMemory.request` does; `None` at the end."""
        epochs = self._epochs
        if self._memory.is_closed or (epochs is not None and epochs.are_over):
            return None
        request, unpacks = self._memory.request(self._table, self._options)
        if epochs is not None:
            request.limit_to_epoch(epochs.present)
        return request, unpacks

    def _keeps(self, batch: ReplayBatch) -> bool:
        """Notes a batch, which has no items if its epoch is over; returns whether to keep it."""
        if self._epochs is None:
            return True
        self._epochs.note(batch)
        return self._epochs.keeps(len(batch.info.key), self._batch_size)

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
        while (wanted := self._request()) is not None:
            batch = self._client._requested_batch(*wanted)
            if self._keeps(batch):
                return self._memory.kept(batch)
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

    def request(self, table: str, options: dict[str, Any]) -> tuple[BatchRequest, bool]:
        """Returns a request for the next batch, and whether it is nested like the signature."""
        others = {"ragged": "error", "pad": 0, "pad_to_multiple_of": None}
        others |= options | {"out": self._memories[self._next]}
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
