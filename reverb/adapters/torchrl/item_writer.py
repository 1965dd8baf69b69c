# SPDX-License-Identifier: Apache-2.0
"""Rows of TensorDicts as items."""

from typing import Any

import numpy as np

from reverb.adapters.torchrl.fields import Fields, as_values
from reverb.adapters.torchrl.library import torch
from reverb.adapters.torchrl.priorities import Priorities
from reverb.adapters.torchrl.table_access import TableAccess

__all__ = ["ItemWriter"]


class ItemWriter:
    """Makes an item of each row.

    Args:
      access: The table.
      priorities: Reduces several priorities of an item to one.
      priority: Of items that have none.
    """

    def __init__(self, access: TableAccess, priorities: Priorities, priority: Any) -> None:
        self._access = access
        self._priorities = priorities
        self._priority = priority

    def write(self, rows: Any, values: Any = None) -> Any:
        """Inserts rows `[B, ...]`, and waits for the server.

        Args:
          rows: TensorDict.
          values: Their priorities, `[B, ...]`; `None`: they have none.

        Returns:
          Their indices, int64 `[B]`; `None` in a group of servers.

        Raises:
          SignatureMismatchError: If the fields are not those of the table.
        """
        fields, tensors = Fields.of(rows)
        order = self._access.fields.check(fields)
        if order is not None:
            tensors = [tensors[at] for at in order]
        priorities = self._priority
        if values is not None:
            priorities = self._priorities.of_items(values, len(rows))
        keys = self._access.insert([as_values(tensor) for tensor in tensors], priorities)
        return None if keys is None else torch.from_numpy(keys.view(np.int64))
