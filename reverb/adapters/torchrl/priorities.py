# SPDX-License-Identifier: Apache-2.0
"""Computes priorities of items from TorchRL's values for their steps."""

from typing import Any

import numpy as np

from reverb.adapters.torchrl.library import torch
from reverb.errors import InvalidArgumentError

__all__ = ["Priorities"]


class Priorities:
    """Makes one priority for each item, and adds `eps` to it.

    With `sequence_length`, the index of an item is given for each of its steps.
    """

    def __init__(
        self, reduction: str, eps: float, sequence_length: int | None, new_item: Any
    ) -> None:
        self._reduction = reduction
        self._eps = eps
        self._length = sequence_length
        self._new_item = new_item

    def of_items(self, values: Any, num_items: int) -> Any:
        """Reduces values to priorities, float64 `[num_items]`.

        New items without values, `None`, get `new_item`.
        """
        if values is None:
            return self._new_item
        values = values.detach().to("cpu", torch.float64)
        if values.numel() != num_items:
            values = getattr(values.reshape(num_items, -1), self._reduction)(dim=1)
            values = values if isinstance(values, torch.Tensor) else values[0]
        return values.reshape(num_items).numpy() + self._eps

    def updates(self, index: Any, priority: Any) -> tuple[Any, Any]:
        """Returns keys `[N]` and priorities `[N]` of an update.

        Raises:
          InvalidArgumentError: If there is not one priority for each index, or if sequences are not
            complete.
        """
        if isinstance(index, tuple):
            index = torch.stack(index, -1)
        keys = torch.as_tensor(index).reshape(-1).cpu().numpy()
        values = torch.as_tensor(priority)
        if len(keys) == 0:
            return keys, np.zeros(0)
        if values.numel() == 1:
            values = values.reshape(1).expand(len(keys))
        if self._length is not None:
            rows = keys.reshape(-1, self._length) if len(keys) % self._length == 0 else None
            if rows is None or (rows != rows[:, :1]).any():
                raise InvalidArgumentError(
                    f"index must have all {self._length} steps of each sequence side by side, as "
                    f"samples have; got {len(keys)} steps"
                )
            keys = rows[:, 0]
        if values.numel() % len(keys):
            raise InvalidArgumentError(
                f"priority must have a value for each of {len(keys)} indices, got shape "
                f"{list(values.shape)}"
            )
        return keys, self.of_items(values, len(keys))
