# SPDX-License-Identifier: Apache-2.0
"""Pinned memory that batches are decoded into, and their copy to a CUDA device."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import tree

from reverb.adapters.torch.library import torch
from reverb.adapters.torch.tensors import as_tensor, dtype_of

__all__ = ["PinnedRing"]

# Below this size a copy from pageable memory is as fast.
_MIN_PINNED_BYTES = 256 * 1024

_logger = logging.getLogger("reverb")


class _Buffer:
    """Memory for one batch."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray[Any, Any]] | None = None
        # Recorded after the copy to the device; the memory must not change before.
        self.event: Any = None


class PinnedRing:
    """A ring of pinned buffers: a batch is decoded into one, and copied to the device.

    The copy runs on a separate stream, in parallel with the program's kernels. Used by one thread.
    """

    def __init__(
        self,
        device: Any,
        num_buffers: int,
        *,
        pin_memory: bool | None = None,
        cuda: Any = torch.cuda,
        allocate: Callable[..., Any] = torch.empty,
    ) -> None:
        """Makes a ring of so many batches in transit or in the queue; allocates nothing yet.

        It pins, or with `None` if a batch has 256 KiB or more. Tests replace `torch.cuda` and
        `torch.empty`.
        """
        self._device = device
        self._pin_memory = pin_memory
        self._cuda = cuda
        self._allocate = allocate
        self._buffers = [_Buffer() for _ in range(num_buffers)]
        self._turn = 0
        self._stream: Any = None

    def out(self) -> list[np.ndarray[Any, Any]] | None:
        """Returns the columns to decode the next batch into; `None`: unknown yet.

        Waits until the copy of the earlier batch in this buffer is complete.
        """
        buffer = self._buffers[self._turn]
        if buffer.event is not None:
            buffer.event.synchronize()
            buffer.event = None
        return buffer.arrays

    def move(self, data: Any) -> tuple[Any, Any]:
        """Starts the copy of a batch to the device, and advances to the next buffer.

        Arrays other than those of `out` are copied into the buffer first.

        Returns:
          The nest with tensors on the device, and an event that is reached when they are complete.
        """
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % len(self._buffers)
        columns = tree.flatten(data)
        if buffer.arrays is None and self._is_worth_it(columns):
            buffer.arrays = self._pinned(columns)
        if buffer.arrays is not None:
            columns = [
                _filled(pinned, column)
                for pinned, column in zip(buffer.arrays, columns, strict=True)
            ]
        if self._stream is None:
            self._stream = self._cuda.Stream(self._device)
        with self._cuda.stream(self._stream):
            tensors = [self._on_device(as_tensor(column)) for column in columns]
            event = self._cuda.Event()
            event.record(self._stream)
        buffer.event = event
        return tree.unflatten_as(data, tensors), event

    def _on_device(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor  # Strings.
        return tensor.to(self._device, non_blocking=True)

    def _is_worth_it(self, columns: list[np.ndarray[Any, Any]]) -> bool:
        if self._pin_memory is not None:
            return self._pin_memory
        return sum(column.nbytes for column in columns) >= _MIN_PINNED_BYTES

    def _pinned(self, columns: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]] | None:
        """Allocates memory like these columns; `None` if it cannot be pinned."""
        try:
            return [
                column
                if dtype_of(column.dtype) is None
                else self._allocate(column.nbytes, dtype=torch.uint8, pin_memory=True)
                .numpy()
                .view(column.dtype)
                .reshape(column.shape)
                for column in columns
            ]
        except RuntimeError as error:
            _logger.warning(
                "memory for batches cannot be pinned, so copies to %s are slower: %s",
                self._device,
                error,
            )
            self._pin_memory = False
            return None


def _filled(pinned: np.ndarray[Any, Any], column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the part of the pinned array that has the values of the column."""
    if pinned.dtype != column.dtype or pinned.shape[1:] != column.shape[1:]:
        return column  # The shape of the items has changed.
    if len(column) > len(pinned):
        return column
    part = pinned[: len(column)]
    if not np.may_share_memory(part, column):
        np.copyto(part, column)
    return part
