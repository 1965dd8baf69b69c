# SPDX-License-Identifier: Apache-2.0
"""A table as a dataset of `torch.utils.data`."""

import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from reverb.adapters.torch.library import torch
from reverb.adapters.torch.loader import Loader
from reverb.client import Client
from reverb.errors import InvalidArgumentError

__all__ = ["SampleDataset"]

_logger = logging.getLogger("reverb")


class SampleDataset(torch.utils.data.IterableDataset):
    """Batches of a table: `DataLoader(dataset, batch_size=None, collate_fn=as_is)`.

    Elements are those of a `Loader` on the CPU. The dataset holds only the address, and connects
    when it is iterated, so it may be pickled and forked. Each worker samples independently; threads
    fetch ahead in any case, so `num_workers=0` is usually faster.
    """

    def __init__(
        self,
        address: str | Client,
        table: str | Mapping[str, float],
        batch_size: int,
        **options: Any,
    ) -> None:
        """Makes a dataset; does not connect.

        Args:
          address: Address of the server, or a client, whose address is used.
          table: Name of a table, or weights by name, see `reverb.batches`.
          batch_size: Number of items in a batch, `B`.
          **options: Other arguments of `Loader`, without `device`.

        Raises:
          InvalidArgumentError: If an argument is out of its range.
        """
        super().__init__()
        if "device" in options:
            raise InvalidArgumentError(
                "SampleDataset has no device: workers of a DataLoader make CPU tensors; use "
                "Loader, or move the batch"
            )
        self._address = address if isinstance(address, str) else address.server_address
        self._table = table
        self._batch_size = batch_size
        self._options = options
        self._loader()

    def __iter__(self) -> Iterator[Any]:
        """Samples without end, or until `end_after_ms` or the last of `epochs`.

        Raises:
          InvalidArgumentError: If a `DataLoader` would convert a `TensorDict`, which it cannot, or
            if several workers would read the epochs of a table.
        """
        if self._options.get("output") == "tensordict":
            _check_collate(sys._getframe(1))
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        num_workers = 0 if worker is None else worker.num_workers
        if num_workers > 1 and self._options.get("epochs") is not None:
            raise InvalidArgumentError(
                "num_workers of the DataLoader must be at most 1 with epochs, which are for one "
                f"reader of a table, got {num_workers}"
            )
        if worker is not None and num_workers > 1 and worker.id == 0:
            _logger.info(
                "%d workers sample independently; the core already fetches in threads, "
                "num_workers=0 is usually faster",
                worker.num_workers,
            )
        with self._loader() as loader:
            yield from loader

    def _loader(self) -> Loader:
        return Loader(self._address, self._table, self._batch_size, **self._options)


def _check_collate(frame: Any) -> None:
    """Checks the `collate_fn` of the `DataLoader` that iterates a dataset, if it can be found.

    The Python frame is that of the caller. In every release so far, and in workers too, it is a
    constructor with the function as an argument.
    """
    collate_fn = frame.f_locals.get("collate_fn")
    collate = torch.utils.data.default_convert, torch.utils.data.default_collate
    if collate_fn is not None and collate_fn in collate:
        raise InvalidArgumentError(
            f"collate_fn of the DataLoader must be reverb.adapters.torch.as_is with "
            f"output='tensordict', got {collate_fn.__name__}, which fails for a TensorDict; "
            "batch_size must be None"
        )
