# SPDX-License-Identifier: Apache-2.0
"""The files of an export whose items have the same layout."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from reverb.command.columns import Batch, Column, make_batch
from reverb.command.item_statistics import num_bytes
from reverb.command.source import StoredItem

# Limits of a batch. Each batch has a fixed cost of conversion; memory is a few times this size.
_BATCH_BYTES = 16 << 20
_BATCH_ITEMS = 4096


class ItemFile(Protocol):
    """A writer of files of one format."""

    def __init__(self, path: pathlib.Path, layout: Sequence[Column]) -> None: ...

    def write(self, batch: Batch) -> None:
        """Appends a batch of items."""
        ...

    def close(self) -> None:
        """Completes the file."""
        ...

    def abandon(self) -> None:
        """Closes the file although it is incomplete."""
        ...

    @staticmethod
    def stored_as(column: Column) -> str:
        """Returns how a column is stored, for the description of the export."""
        ...


@dataclasses.dataclass(frozen=True)
class ShardLimit:
    """Limit of one file.

    Attributes:
      items: Number of items of a file.
      bytes_: Size of the data of a file.
    """

    items: float = math.inf
    bytes_: float = math.inf

    def is_reached(self, num_items: int, size: int) -> bool:
        """Whether a file with `num_items` items and `size` bytes is full."""
        return num_items >= self.items or size >= self.bytes_


class FileSeries:
    """Writes items of one layout to a series of files; `new_path` names the file with a number."""

    def __init__(
        self,
        layout: Sequence[Column],
        file_type: type[ItemFile],
        limit: ShardLimit,
        new_path: Callable[[int], pathlib.Path],
    ) -> None:
        self._layout = layout
        self._file_type = file_type
        self._limit = limit
        self._new_path = new_path
        self._files: list[dict[str, Any]] = []
        self._pending: list[StoredItem] = []
        self._pending_bytes = 0
        self._file_bytes = 0
        self._file: ItemFile | None = None

    def add(self, item: StoredItem) -> None:
        """Appends an item."""
        if self._file is None:
            self._open()
        self._pending.append(item)
        size = sum(num_bytes(column) for column in item.columns)
        self._pending_bytes += size
        self._file_bytes += size
        self._files[-1]["num_items"] += 1
        if self._limit.is_reached(self._files[-1]["num_items"], self._file_bytes):
            self._close_file()
        elif self._pending_bytes >= _BATCH_BYTES or len(self._pending) >= _BATCH_ITEMS:
            self._flush()

    def close(self) -> None:
        """Completes the last file, which is empty if there are no items."""
        if not self._files:
            self._open()
        if self._file is not None:
            self._close_file()

    def abandon(self) -> None:
        """Abandons a file that is not complete."""
        if self._file is not None:
            self._file.abandon()

    def describe(self) -> dict[str, Any]:
        """Returns the columns and the files."""
        return {
            "columns": [describe_column(column, self._file_type) for column in self._layout],
            "files": self._files,
        }

    def _open(self) -> None:
        path = self._new_path(len(self._files))
        self._file = self._file_type(path, self._layout)
        self._files.append({"name": path.name, "num_items": 0})
        self._file_bytes = 0

    def _flush(self) -> None:
        if self._file is not None and self._pending:
            self._file.write(make_batch(self._pending, self._layout))
        self._pending, self._pending_bytes = [], 0

    def _close_file(self) -> None:
        self._flush()
        if self._file is not None:
            self._file.close()
        self._file = None


def describe_column(column: Column, file_type: type[ItemFile]) -> dict[str, Any]:
    """Returns the properties of a column that a program needs to read it."""
    return {
        "name": column.name,
        "dtype": column.dtype_name,
        "shape": column.shape,
        "stored_as": file_type.stored_as(column),
    }
