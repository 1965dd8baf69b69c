# SPDX-License-Identifier: Apache-2.0
"""Converts items of a table to TensorDicts: batches, single items, or all."""

from collections.abc import Iterator
from typing import Any

import numpy as np

import reverb
from reverb.adapters.torchrl.library import torch
from reverb.adapters.torchrl.sequence_keys import SequenceKeys
from reverb.adapters.torchrl.table_access import TableAccess
from reverb.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["ItemReader"]


class ItemReader:
    """Makes TensorDicts of items.

    With a `sequence_length` an item is a sequence of that many steps; with a `window` it is a
    sequence of any number of steps.
    """

    def __init__(
        self,
        access: TableAccess,
        sequence_length: int | None,
        window: reverb.Window | None,
        keys: SequenceKeys,
        device: Any,
    ) -> None:
        self._access = access
        self._length = sequence_length
        self._window = window
        self._keys = keys
        self._device = device

    def of_batch(self, batch: Any, beta: float | None) -> tuple[Any, dict[Any, Any]]:
        """The data of a batch and fields to add later; `beta` is that of importance weights.

        The data is `[B, ...]`, `[B * T]` of sequences, or `[B, T]` of windows.

        Raises:
          InvalidArgumentError: If the items have other columns than the fields, or if their lengths
            differ from each other or from `sequence_length`.
        """
        data = batch.data
        if self._access.fields.lack_time:
            self._access.fields.learn_time([self._shows_time(it) for it in data])
        columns = [self._stacked(it) if isinstance(it, reverb.Ragged) else it for it in data]
        fields = self._access.fields.of_items()
        made = self._of_columns(columns, fields, is_flat=self._window is None)
        info = {"index": torch.from_numpy(batch.info.key.view(np.int64))}
        if beta is not None:
            info["priority_weight"] = self.weights(batch, beta)
        if self._length is not None:
            info = {name: it.repeat_interleave(self._length) for name, it in info.items()}
            # The same shape as with `SliceSampler`.
            info["index"] = info["index"].unsqueeze(-1)
            begins, ends = (torch.zeros(made.shape, dtype=torch.bool) for _ in range(2))
            begins[:: self._length] = True
            ends[self._length - 1 :: self._length] = True
            info |= self._keys.marks(made, begins, ends)
        if self._window is not None:
            info |= self._of_windows(batch, made)
        if self._device.type != "cpu":
            info = {name: it.to(self._device) for name, it in info.items()}
        return made, info

    def _shows_time(self, column: Any) -> bool:
        """Whether a column of a batch is a sequence, where only a signature has the fields."""
        if self._window is None:
            return isinstance(column, reverb.Ragged)
        return column.ndim > 1 and column.shape[1] == self._window.num_steps

    def _of_windows(self, batch: Any, made: Any) -> dict[Any, Any]:
        """Fields that are added to samples of windows `[B, T]`."""
        steps = torch.from_numpy(batch.window_mask)
        padding = torch.zeros(len(steps), 1, dtype=torch.bool)
        begins = steps & ~torch.cat([padding, steps[:, :-1]], 1)
        ends = steps & ~torch.cat([steps[:, 1:], padding], 1)
        of_items = {name: getattr(batch, name) for name in ("window_start", "num_windows")}
        return {
            **{("reverb", name): torch.from_numpy(it) for name, it in of_items.items()},
            ("reverb", "window_mask"): steps,
            **self._keys.marks(made, begins.to(made.device), ends.to(made.device)),
        }

    def weights(self, batch: Any, beta: float) -> Any:
        """The importance weights of a batch, float32 `[B]`; the largest of the table is 1.

        The largest one of windows in the batch is 1.
        """
        if self._window is not None:
            return torch.from_numpy(reverb.importance_weights(batch, beta, "batch"))
        probability = torch.from_numpy(batch.info.probability)
        smallest = torch.from_numpy(batch.min_probability)
        if not bool((smallest > 0).all()):  # The server does not report it.
            smallest = probability.min()
        return (probability / smallest).pow_(-beta).float()

    def scan(self) -> Iterator[Any]:
        """Reads all items, the oldest one first, as TensorDicts `[...]`, or `[T]` of steps."""
        fields = None
        for columns in self._access.scan():
            fields = fields or self._access.fields.of_items()
            yield self._of_columns([it[None] for it in columns], fields)[0]

    def read(self, chosen: slice) -> Any:
        """Reads items `[N, ...]`, or `[N, T]`, counted from the oldest one.

        Raises:
          FailedPreconditionError: If the table is empty.
          InvalidArgumentError: If items have different numbers of steps.
        """
        rows = list(self._access.scan())
        if not rows:
            raise FailedPreconditionError(
                f"table {self._access.table} of server {self._access.address} has no items to read"
            )
        count = len(rows[chosen])
        # For an empty slice, one row gives the shapes.
        read = rows[chosen] or rows[:1]
        for column in zip(*read, strict=True):
            if len({it.shape for it in column}) > 1:
                raise InvalidArgumentError(
                    f"items of table {self._access.table} have different numbers of steps, so they "
                    "are no TensorDict; buffer.scan() reads them one by one"
                )
        columns = [np.stack(it)[:count] for it in zip(*read, strict=True)]
        return self._of_columns(columns, self._access.fields.of_items())

    def _of_columns(self, columns: list[Any], fields: Any, *, is_flat: bool = False) -> Any:
        """A TensorDict `[N, ...]` of columns; of sequences `[N, T]`, or `[N * T]`."""
        if len(columns) != len(fields.paths):
            raise InvalidArgumentError(
                f"table {self._access.table} has {len(columns)} columns, but its fields are "
                f"{['.'.join(path) for path in fields.paths]}: another program writes to it"
            )
        have_time = self._access.fields.have_time(fields, [it.ndim - 1 for it in columns])
        described = zip(columns, have_time, fields.paths, strict=True)
        size: tuple[int, ...]
        if self._length is not None or self._window is not None:
            described = list(described)
            length = self._length
            if length is None:
                length = next((len(it[0]) for it, is_time, _ in described if is_time), 1)
            columns = [self._steps(length, *it) for it in described]
            size = columns[0].shape[:2]
            if is_flat:
                size = (size[0] * size[1],)
                columns = [it.reshape(*size, *it.shape[2:]) for it in columns]
        else:
            columns = [
                self._step(column, path, fields) if has_time else column
                for column, has_time, path in described
            ]
            size = columns[0].shape[: 1 + fields.batch_dims]
        return fields.to_tensordict(columns, size, self._device)

    def _step(self, column: Any, path: tuple[str, ...], fields: Any) -> Any:
        """A column `[N, ...]` of one step, or of more if only a signature has its fields."""
        if column.shape[1] == 1:
            return column.reshape(len(column), *column.shape[2:])
        if fields.signature_shapes is None:
            raise InvalidArgumentError(
                f"items of table {self._access.table} are sequences: field {'.'.join(path)} has "
                f"{column.shape[1]} steps; give sequence_length={column.shape[1]}"
            )
        return column

    def _steps(self, length: int, column: Any, has_time: bool, path: tuple[str, ...]) -> Any:
        """A column `[N, T, ...]` of sequences; single values of an item are repeated."""
        if not has_time:
            shape = (len(column), length, *column.shape[1:])
            return np.ascontiguousarray(np.broadcast_to(column[:, None], shape))
        if column.shape[1] != length:
            raise InvalidArgumentError(
                f"sequence_length={length} must be the number of steps of the items of table "
                f"{self._access.table}, which have {column.shape[1]} in field {'.'.join(path)}"
            )
        return column

    def _stacked(self, column: Any) -> np.ndarray[Any, Any]:
        """A packed column as an array `[N, T, ...]`.

        Raises:
          InvalidArgumentError: If the lengths differ.
        """
        lengths = column.lengths
        if (lengths != lengths[:1]).any():
            raise InvalidArgumentError(
                f"items of table {self._access.table} must have the same number of steps to be one "
                f"batch, and have from {lengths.min()} to {lengths.max()}"
            )
        return column.values.reshape(len(lengths), -1, *column.values.shape[1:])
