# SPDX-License-Identifier: Apache-2.0
"""Writes rows of TensorDicts as items."""

from typing import Any

import numpy as np

from reverb.adapters.torchrl.fields import columns_of
from reverb.adapters.torchrl.library import torch
from reverb.adapters.torchrl.priorities import Priorities
from reverb.adapters.torchrl.table_access import TableAccess

__all__ = ["ItemWriter"]


class ItemWriter:
    """Makes an item of each row; one without priorities gets `priority`."""

    def __init__(self, access: TableAccess, priorities: Priorities, priority: Any) -> None:
        self._access = access
        self._priorities = priorities
        self._priority = priority

    def write(self, rows: Any, values: Any = None) -> Any:
        """Inserts rows `[B, ...]` with their priorities, if there are any; waits for the server.

        Returns:
          Indices of the items, int64 `[B]`; `None` in a group of servers.

        Raises:
          SignatureMismatchError: If the fields are not those of the table.
        """
        fields, columns = columns_of(rows)
        columns = self._access.fields.in_order(fields, columns)
        priorities = self._priority
        if values is not None:
            priorities = self._priorities.of_items(values, len(rows))
        keys = self._access.insert(columns, priorities)
        self._access.fields.confirm()
        return None if keys is None else torch.from_numpy(keys.view(np.int64))
