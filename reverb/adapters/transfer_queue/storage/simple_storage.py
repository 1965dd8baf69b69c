# SPDX-License-Identifier: Apache-2.0
"""The rows of one put, checked, on their way to the table of values."""

from collections.abc import Sequence
from typing import Any

from reverb.adapters.transfer_queue.columns import Form, Rows

__all__ = ["StorageUnitData"]


class StorageUnitData:
    """Fields with a value for each sample.

    Attributes:
      storage_size: The most samples that it takes.
      fields: The rows of each field, by name.
    """

    def __init__(self, storage_size: int) -> None:
        self.storage_size = storage_size
        self.fields: dict[str, Rows] = {}

    def put_data(self, field_data: dict[str, Any], global_indexes: Sequence[int]) -> None:
        """Adds fields: tensors `[B, ...]` or lists of `B` values.

        Raises:
          ValueError: If `B` is not the number of samples, or above `storage_size`.
        """
        size = len(global_indexes)
        for name, values in field_data.items():
            if len(values) != size:
                raise ValueError(
                    f"length mismatch: field {name} has {len(values)} values for {size} samples"
                )
        if size > self.storage_size:
            raise ValueError(f"storage_size is {self.storage_size}, got {size} samples")
        self.fields |= {name: Rows(values) for name, values in sorted(field_data.items())}

    def forms(self, size: int) -> list[tuple[Form, ...]]:
        """Returns the forms of the fields of each sample."""
        forms = (rows.forms for rows in self.fields.values())
        return list(zip(*forms, strict=True)) if self.fields else [()] * size
