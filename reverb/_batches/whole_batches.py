# SPDX-License-Identifier: Apache-2.0
"""Batches of all items or none, for an iterator that ends."""

import logging
import math
from typing import TYPE_CHECKING

from reverb._client.connecting import is_group
from reverb.errors import ReverbError, UnimplementedError
from reverb.server_status import TableStatus

if TYPE_CHECKING:
    from reverb.client import Client  # It imports this room.

__all__ = ["MAX_ITEMS", "WholeBatches"]

# The server picks batches of this many items at once.
MAX_ITEMS = 65_536

_logger = logging.getLogger("reverb")


class WholeBatches:
    """Decides whether batches are requested as a whole, and reports the rest of the table.

    The items of an incomplete batch then stay in the table. Some batches must come in parts: from a
    server of dm-reverb or a group, which cannot sample a batch at once, and from a table that never
    holds a whole batch, because its writers wait for samples before.
    """

    def __init__(self, client: "Client", table: str) -> None:
        """Stores the arguments; does not connect yet."""
        self._client = client
        self._table = table
        self._are_possible: bool | None = None
        if is_group(client.server_address):
            self._are_possible = False
        self._most = 0

    def are_possible(self, count: int) -> bool:
        """Whether to request `count` items as a whole. The first call blocks for the server.

        Raises:
          ReverbError: If the server does not report its status.
        """
        if self._are_possible is None:
            try:
                self._client.status()
                self._are_possible = True
            except UnimplementedError:
                self._are_possible = False
        return self._are_possible and count <= MAX_ITEMS

    def has_grown(self) -> bool:
        """Whether more items may be sampled than at any call before, after a wait for a batch.

        If writers wait as well, batches are requested in parts from now on.
        """
        status = self._status()
        if status is None:
            return False
        if status.inserting.waiting:
            self._are_possible = False
            return True
        num_left = _num_left(status)
        has_grown = num_left > self._most
        self._most = max(self._most, num_left)
        return has_grown

    def warn_of_rest(self, count: int) -> None:
        """Logs how many items are left in the table, if there are any; a batch has `count`."""
        status = self._status()
        num_left = 0 if status is None else _num_left(status)
        if num_left:
            _logger.warning(
                "the last batch of %d items of table %s at %s is not complete: %d items are left, "
                "and stay in the table; partial=True returns them as a shorter batch",
                count,
                self._table,
                self._client.server_address,
                num_left,
            )

    def _status(self) -> TableStatus | None:
        if not self._are_possible:
            return None
        try:
            return self._client.status().tables.get(self._table)
        except ReverbError:
            return None  # The next request for a batch gets the same error.


def _num_left(status: TableStatus) -> int:
    """Number of items that the rate limiter allows to sample now, at most those of the table."""
    if status.items < max(1, status.limiter.min_size_to_sample):
        return 0
    return max(0, math.floor(min(status.items, status.cursor - status.limiter.min_diff)))
