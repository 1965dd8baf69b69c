# SPDX-License-Identifier: Apache-2.0
"""Pinned memory that batches are decoded into, and their way to a CUDA device."""

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


class _Slot:
    """Memory for one batch."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray[Any, Any]] | None = None
        # Recorded after the copy to the device; the memory must not change before.
        self.event: Any = None


class PinnedRing:
    """Slots of pinned memory in turn: a batch is decoded into one, and copied to the device.

    The copy runs on a stream of its own, beside the program's kernels. Used by one thread.
    """

    def __init__(
        self,
        device: Any,
        num_slots: int,
        *,
        pin_memory: bool | None = None,
        cuda: Any = torch.cuda,
        allocate: Callable[..., Any] = torch.empty,
    ) -> None:
        """Makes a ring; allocates nothing yet.

        Args:
          device: A CUDA device.
          num_slots: Number of batches that may be on their way or in the queue.
          pin_memory: Whether to pin; `None`: if a batch has 256 KiB or more.
          cuda: `torch.cuda`, or a stand-in for tests.
          allocate: `torch.empty`, or a stand-in for tests.
        """
        self._device = device
        self._pin_memory = pin_memory
        self._cuda = cuda
        self._allocate = allocate
        self._slots = [_Slot() for _ in range(num_slots)]
        self._turn = 0
        self._stream: Any = None

    def out(self) -> list[np.ndarray[Any, Any]] | None:
        """Returns the columns that the next batch may be decoded into; `None`: not known yet.

        Waits until the copy of the batch that was there is complete.
        """
        slot = self._slots[self._turn]
        if slot.event is not None:
            slot.event.synchronize()
            slot.event = None
        return slot.arrays

    def move(self, data: Any) -> tuple[Any, Any]:
        """Starts the copy of a batch to the device, and goes on to the next slot.

        Args:
          data: Nest of arrays: those of `out`, or others, which are copied into the slot first.

        Returns:
          The nest with tensors on the device, and an event that is reached when they are complete.
        """
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % len(self._slots)
        columns = tree.flatten(data)
        if slot.arrays is None and self._is_worth_it(columns):
            slot.arrays = self._pinned(columns)
        if slot.arrays is not None:
            columns = [
                _filled(place, column) for place, column in zip(slot.arrays, columns, strict=True)
            ]
        if self._stream is None:
            self._stream = self._cuda.Stream(self._device)
        with self._cuda.stream(self._stream):
            tensors = [self._on_device(as_tensor(column)) for column in columns]
            event = self._cuda.Event()
            event.record(self._stream)
        slot.event = event
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


def _filled(place: np.ndarray[Any, Any], column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the part of the slot that has the values of the column."""
    if place.dtype != column.dtype or place.shape[1:] != column.shape[1:]:
        return column  # The items have another shape now.
    if len(column) > len(place):
        return column
    part = place[: len(column)]
    if not np.may_share_memory(part, column):
        np.copyto(part, column)
    return part
