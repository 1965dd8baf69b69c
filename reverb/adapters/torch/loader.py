# SPDX-License-Identifier: Apache-2.0
"""Batches of a table as tensors, fetched ahead."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import reverb
from reverb import BatchIterator, PrefetchStats
from reverb.adapters.torch.library import import_tensordict, torch
from reverb.adapters.torch.pinned_ring import PinnedRing
from reverb.adapters.torch.tensors import as_sample, as_tensordict, leaves, moved, on_cpu
from reverb.client import Client
from reverb.errors import FailedPreconditionError, InvalidArgumentError
from reverb.replay_sample import ReplayBatch

__all__ = ["Loader"]


class Loader:
    """An endless iterator over batches of tensors, which fetches some batches ahead.

    It begins to fetch with the first `next`. Each element is a `ReplayBatch`, a named tuple
    `(info, data)`: `data` is nested like the table's signature with tensors `[B, ...]`, on
    `device`; `info` is a `BatchInfo` of tensors `[B]` on the CPU, `lengths` and the fields of
    windows too. With output="tensordict" it is a `TensorDict` instead. The `key` is int64 with the
    bits of the key. Values that a tensor cannot hold, such as strings, stay NumPy arrays, or a
    `reverb.Ragged` of them with ragged="packed". On the CPU, tensors share the memory that the
    batch was decoded into.

    Batches that are fetched ahead count as sampled, see `reverb.batches`. Close it, or use it in a
    `with` block. Not thread-safe, except for `update_priorities`.
    """

    def __init__(
        self,
        client: Client | str,
        table: str | Mapping[str, float],
        batch_size: int,
        *,
        device: Any = "cpu",
        pin_memory: bool | None = None,
        prefetch: int = 2,
        output: Literal["nest", "tensordict"] = "nest",
        batch_dims: int = 1,
        transform: Callable[[Any], Any] | None = None,
        partial: bool = False,
        **options: Any,
    ) -> None:
        """Makes a loader; does not connect yet.

        Args:
          client: A client, or the address of a server.
          table: Name of a table, or weights by name, see `reverb.batches`.
          batch_size: Number of items in a batch, `B`.
          device: Device of the data. Batches for a CUDA device are decoded into reused pinned
            memory, and copied on a separate stream; the stream that is current in `next` waits for
            the copy.
          pin_memory: Whether to use pinned memory for a CUDA device; `None`: for batches of 256 KiB
            or more.
          prefetch: Number of batches to fetch ahead, at least 1.
          output: "nest", or "tensordict" for a `TensorDict`: with the nests of the data as nested
            keys, and the fields of the info below "reverb", as `batch["reverb", "key"]`.
          batch_dims: Number of batch dimensions of the `TensorDict`: 1, or 2 for sequences
            `[B, T]`.
          transform: Called with every batch of tensors in the background thread; its results are
            returned.
          partial: As in `reverb.batches`.
          **options: Other arguments of `reverb.batches`: `mix`, `seed`, `timeout_ms`,
            `end_after_ms`, `epochs`, `drop_last`, and those of `Client.sample_batch`.

        Raises:
          InvalidArgumentError: If an argument is out of its range.
          TypeError: If one is of another type, or if there is no such argument.
          ModuleNotFoundError: If `tensordict` is missing, with output="tensordict".
        """
        if output not in ("nest", "tensordict"):
            raise InvalidArgumentError(f"output must be 'nest' or 'tensordict', got {output!r}")
        if batch_dims not in (1, 2) or (batch_dims == 2 and output == "nest"):
            raise InvalidArgumentError(
                f"batch_dims must be 1, or 2 with output='tensordict', got {batch_dims} with "
                f"output={output!r}"
            )
        window = options.get("window")
        if batch_dims == 2 and window is not None and getattr(window, "spans", None):
            raise InvalidArgumentError(
                "batch_dims must be 1 with window.spans, which give columns other numbers of "
                f"steps, got {batch_dims} and {window}"
            )
        if output == "tensordict":
            import_tensordict()
        if not isinstance(client, Client):
            Client(client)  # Checks the address; `batches` makes the client that is used.
        BatchIterator.check_arguments(
            table, batch_size, prefetch=prefetch, transform=transform, partial=partial, **options
        )
        self._device = torch.device(device)
        self._output = output
        self._batch_dims = batch_dims
        self._transform = transform
        self._arguments = (client, table, batch_size)
        self._options = dict(options, prefetch=prefetch, partial=partial)
        self._ring: PinnedRing | None = None
        # The size of a packed batch is not known before.
        if self._device.type == "cuda" and options.get("ragged") != "packed":
            # One batch that is decoded, those in the queue, and one that the program uses.
            self._ring = PinnedRing(self._device, prefetch + 2, pin_memory=pin_memory)
            self._options["out"] = self._ring.out
        self._iterator: BatchIterator | None = None
        self._is_closed = False

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> Any:
        """Returns the next batch; blocks until there is one.

        Raises:
          StopIteration: If the loader was closed, or after `end_after_ms` or the last of
            `epochs`.
          DeadlineExceededError: After `timeout_ms`; the text says what it waited for. Nothing is
            lost: call again.
          ReverbError: If fetching or an update of priorities failed; the text names table and
            address.
        """
        if self._is_closed:
            raise StopIteration
        iterator = self._iterator or self._started()
        if self._ring is None:
            return next(iterator)
        batch, event = next(iterator)
        self._wait_for(batch, event)
        return batch

    def update_priorities(self, keys: Any, priorities: Any) -> None:
        """Updates priorities in the background, in the order of the calls.

        Blocks only while 16 updates are queued; does not wait for the device. Errors are raised by
        the next `next`.

        Args:
          keys: Tensor or array `[B]` of integers: `batch.info.key`.
          priorities: Tensor or array `[B]` of any float or integer dtype, at least 0 and finite; on
            any device.

        Raises:
          InvalidArgumentError: If the arguments have different lengths or other dtypes.
          FailedPreconditionError: If the loader is closed.
          ReverbError: If an earlier update failed.
        """
        self._started().update_priorities(on_cpu(keys), on_cpu(priorities))

    def flush(self) -> None:
        """Waits until the server has applied all updates of priorities; raises their error."""
        if self._iterator is not None:
            self._iterator.flush()

    def stats(self) -> PrefetchStats:
        """Returns the number of ready batches, and the age of the last one; does not block."""
        if self._iterator is None:
            return PrefetchStats(0, 0, 0.0, 0.0)
        return self._iterator.stats()

    def close(self) -> None:
        """Ends the background threads, after the queued updates of priorities."""
        self._is_closed = True
        if self._iterator is not None:
            self._iterator.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _started(self) -> BatchIterator:
        if self._is_closed:
            raise FailedPreconditionError("the loader is closed")
        if self._iterator is None:
            convert = self._copied if self._ring is not None else self._converted
            # The program's transform may be slow, so it is called in the background thread.
            argument = "convert" if self._transform is None else "transform"
            options: dict[str, Any] = {**self._options, argument: convert}
            self._iterator = reverb.batches(*self._arguments, **options)
        return self._iterator

    def _converted(self, sample: ReplayBatch) -> Any:
        """Makes a batch of tensors; mostly called in the background thread."""
        sample = as_sample(sample)
        if self._device.type != "cpu":
            sample = ReplayBatch(sample.info, moved(sample.data, self._device))
        batch = self._as_output(sample)
        return batch if self._transform is None else self._transform(batch)

    def _copied(self, sample: ReplayBatch) -> tuple[Any, Any]:
        """Starts a batch's copy to a CUDA device; returns the batch and the event of the copy."""
        assert self._ring is not None
        data, event = self._ring.move(sample.data)
        info = as_sample(ReplayBatch(sample.info, ())).info
        batch = self._as_output(ReplayBatch(info, data))
        if self._transform is None:
            return batch, event
        event.synchronize()
        return self._transform(batch), event

    def _as_output(self, sample: ReplayBatch) -> Any:
        if self._output == "nest":
            return sample
        return as_tensordict(sample, self._batch_dims)

    def _wait_for(self, batch: Any, event: Any) -> None:
        """Makes the current stream wait for the copy; the memory stays while the stream uses it."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in leaves(batch):
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                tensor.record_stream(stream)
