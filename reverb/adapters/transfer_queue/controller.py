# SPDX-License-Identifier: Apache-2.0
"""The actor "TransferQueueController" on Ray: what programs ask it about partitions."""

import dataclasses
from typing import Any

import numpy as np

import reverb
from reverb.adapters.transfer_queue.client import TransferQueueClient

__all__ = ["PartitionSnapshot", "TransferQueueController"]


@dataclasses.dataclass
class PartitionSnapshot:
    """A partition at one moment.

    Attributes:
      partition_id: Its name.
      keys_mapping: The number of each key.
      global_indexes: The numbers of the keys.
      custom_meta: The tags, by the number of the key.
      field_name_mapping: The column of each field in `production_status`.
      production_status: `[number of a key, column]` is 1 if the key has the field, else 0.
    """

    partition_id: str
    keys_mapping: dict[str, int]
    global_indexes: set[int]
    custom_meta: dict[int, dict[str, Any]]
    field_name_mapping: dict[str, int]
    production_status: "_Status"


class _Status:
    """An array whose rows are numbers of keys."""

    def __init__(self, rows: dict[int, np.ndarray]) -> None:
        self._rows = rows

    def __getitem__(self, place: tuple[int, int]) -> int:
        return int(self._rows[place[0]][place[1]])


class TransferQueueController:
    """Answers questions about partitions; it holds nothing."""

    def __init__(self, address: str) -> None:
        self._client = TransferQueueClient(reverb.Client(address))

    def list_partitions(self) -> list[str]:
        """Returns the names of the partitions."""
        return self._client.get_partition_list()

    def clear_partition(self, partition_id: str) -> None:
        """Deletes a partition."""
        self._client.clear_partition(partition_id)

    def get_partition_snapshot(self, partition_id: str) -> PartitionSnapshot | None:
        """Returns keys, tags and fields of a partition; `None`: there is no such partition."""
        if partition_id not in self._client.get_partition_list():
            return None
        known = self._client.snapshot(partition_id)
        names = {name: None for it in known.values() for name in it.fields}
        return PartitionSnapshot(
            partition_id,
            {str(it.key): number for number, it in known.items()},
            set(known),
            {number: it.tag for number, it in known.items()},
            {name: at for at, name in enumerate(names)},
            _Status(
                {
                    number: np.array([name in it.fields for name in names], np.int8)
                    for number, it in known.items()
                }
            ),
        )
