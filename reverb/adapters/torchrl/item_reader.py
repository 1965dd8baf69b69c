# SPDX-License-Identifier: Apache-2.0
"""Items of a table as TensorDicts: of a batch, one by one, or all."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reverb.adapters.torchrl.library import torch
from reverb.adapters.torchrl.table_access import TableAccess
from reverb.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["ItemReader"]

_ENDS = (("next", "truncated"), ("next", "done"))


class ItemReader:
    """Makes TensorDicts of items.

    With a `sequence_length` an item is a sequence of that many steps.
    """

    def __init__(self, access: TableAccess, sequence_length: int | None, device: Any) -> None:
        self._access = access
        self._length = sequence_length
        self._device = device

    def of_batch(self, batch: Any) -> Any:
        """The data of a batch: `[B, ...]`, or `[B * T]` of sequences.

        Raises:
          InvalidArgumentError: If the items have other columns than the fields tell.
        """
        if self._length is None:
            return self._of_columns(batch.data, len(batch.info.key))
        columns = [it.reshape(-1, *it.shape[2:]) for it in batch.data]
        fields = self._fields_of(columns)
        data = fields.to_tensordict(columns, (len(columns[0]),), self._device)
        # The last step of a sequence is none that the next one follows.
        for path in _ENDS:
            flag = data.get(path, None)
            if flag is not None:
                flag[self._length - 1 :: self._length] = True
        return data

    def weights(self, batch: Any, beta: float) -> Any:
        """The importance weights of a batch, float32 `[B]`; the largest of the table is 1."""
        probability = torch.from_numpy(batch.info.probability)
        smallest = torch.from_numpy(batch.min_probability)
        if not bool((smallest > 0).all()):  # The server does not tell it.
            smallest = probability.min()
        return (probability / smallest).pow_(-beta).float()

    def scan(self) -> Iterator[Any]:
        """Reads all items, the oldest one first, as TensorDicts `[...]`, or `[T]` of sequences."""
        for columns in self._access.scan():
            yield self._of_columns([it[None] for it in columns], 1)[0]

    def read(self, places: slice) -> Any:
        """Reads items `[N, ...]`, or `[N, T]`, counted from the oldest one.

        Raises:
          FailedPreconditionError: If the table is empty.
        """
        rows = list(self._access.scan())
        if not rows:
            raise FailedPreconditionError(
                f"table {self._access.table} of server {self._access.address} has no items to read"
            )
        count = len(rows[places])
        # One row tells the shapes if there are none in the slice.
        chosen = rows[places] or rows[:1]
        columns = [np.stack(it)[:count] for it in zip(*chosen, strict=True)]
        return self._of_columns(columns, count)

    def _of_columns(self, columns: list[Any], num_items: int) -> Any:
        """A TensorDict of columns `[N, ...]`, or `[N, 1, ...]` of items of one step."""
        fields = self._fields_of(columns)
        if self._length is not None:
            size = (num_items, self._length)
            return fields.to_tensordict(columns, size, self._device)
        columns = [
            it.reshape(num_items, *it.shape[2:]) if it.ndim > 1 and it.shape[1] == 1 else it
            for it in columns
        ]
        inner = columns[0].shape[1 : 1 + fields.batch_dims]
        return fields.to_tensordict(columns, (num_items, *inner), self._device)

    def _fields_of(self, columns: list[Any]) -> Any:
        fields = self._access.fields()
        if len(columns) != len(fields.paths):
            raise InvalidArgumentError(
                f"table {self._access.table} has {len(columns)} columns, where its fields are "
                f"{['.'.join(path) for path in fields.paths]}: another program writes into it"
            )
        return fields
