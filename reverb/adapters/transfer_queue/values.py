# SPDX-License-Identifier: Apache-2.0
"""The values of fields: a table with an item for each field of each key."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import reverb
from reverb.adapters.transfer_queue.columns import Form, Rows, group_of
from reverb.adapters.transfer_queue.keyed_items import (
    field_keys,
    insert_rows,
    insert_sequences,
    text_key,
)
from reverb.errors import InvalidArgumentError

__all__ = ["VALUES", "Values"]

VALUES = "transfer_queue_values"


class Values:
    """The values on a server."""

    def __init__(self, client: reverb.Client) -> None:
        self._client = client

    @staticmethod
    def keys(name: str, rows: np.ndarray) -> np.ndarray:
        """Returns the keys of the items of a field."""
        return field_keys(rows, text_key("field", name))

    def write(self, name: str, rows: np.ndarray, values: Rows) -> None:
        """Stores a value for each row."""
        keys = self.keys(name, rows)
        for indices, array in values.steps:
            insert_rows(self._client, VALUES, [array], keys[indices])
        if values.sequences:
            indices, sequences = zip(*values.sequences, strict=True)
            insert_sequences(self._client, VALUES, list(sequences), keys[list(indices)])

    def read(
        self, name: str, rows: np.ndarray, forms: Sequence[Form]
    ) -> list[tuple[np.ndarray, Any]]:
        """Reads the values of rows in as many calls as there are kinds of forms.

        Returns:
          Pairs of the indices of rows, and their values: an array `[N, ...]` or a `Ragged`.

        Raises:
          ValueError: If a value is not there any more.
        """
        keys = self.keys(name, rows)
        groups: dict[Form, list[int]] = {}
        for index, form in enumerate(forms):
            groups.setdefault(group_of(form), []).append(index)
        return [
            part
            for (*_, packed), indices in groups.items()
            for part in self._read(name, keys, np.array(indices), packed)
        ]

    def delete(self, rows: np.ndarray, names: Sequence[str]) -> None:
        """Deletes the values of these fields of rows."""
        if names:
            keys = np.concatenate([self.keys(name, rows) for name in names])
            self._client.delete_items(VALUES, keys)

    def _read(
        self, name: str, keys: np.ndarray, indices: np.ndarray, packed: bool
    ) -> list[tuple[np.ndarray, Any]]:
        wanted = keys[indices]
        distinct, places = np.unique(wanted, return_inverse=True)
        if len(distinct) == len(wanted):
            distinct, places = wanted, None
        try:
            batch = self._client.fetch(
                VALUES, distinct, squeeze=not packed, ragged="packed" if packed else "error"
            )
        except InvalidArgumentError:
            if len(indices) == 1 and packed:
                return self._read(name, keys, indices, False)
            if len(indices) == 1:
                raise
            # Other programs have put values of other forms since the entries were read.
            each = (self._read(name, keys, indices[[at]], True) for at in range(len(indices)))
            return [part for parts in each for part in parts]
        if len(batch.info.key) != len(distinct):
            raise ValueError(f"Values of field {name} were not found: they were cleared meanwhile.")
        values = batch.data[0]
        if places is None:
            return [(indices, values)]
        values = list(values) if packed else values[places]
        return [(indices, [values[at] for at in places] if packed else values)]
