# SPDX-License-Identifier: Apache-2.0
"""`reverb export`: the items of a table as files that other programs read.

Memory is bounded by some batches of items, whatever the table holds.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any, Protocol

from reverb.command import columns, npz, parquet, tfrecord
from reverb.command.columns import Batch, Column
from reverb.command.item_statistics import num_bytes
from reverb.command.output import Output
from reverb.command.progress import Progress
from reverb.command.source import Source, StoredItem, check_table
from reverb.errors import InvalidArgumentError

# How much data a file of a directory has if `--shard-items` does not tell.
SHARD_BYTES = 256 << 20


class _File(Protocol):
    """What writes one file of some format."""

    def write(self, batch: Batch) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...
    @staticmethod
    def stored_as(column: Column) -> str: ...


# The class that writes a file, and the ends of the names of such files.
FORMATS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "npz": (npz.NpzFile, npz.SUFFIXES),
    "parquet": (parquet.ParquetFile, parquet.SUFFIXES),
    "tfrecord": (tfrecord.TfrecordFile, tfrecord.SUFFIXES),
}


def export(
    source: Source,
    table: str,
    format_: str,
    path: pathlib.Path,
    *,
    max_items: int | None = None,
    shard_items: int | None = None,
    overwrite: bool = False,
    use_signature: bool = True,
    progress: bool | None = None,
) -> tuple[int, pathlib.Path]:
    """Writes the items of a table, oldest first.

    Args:
      source: Where they come from.
      table: Name of the table.
      format_: A key of `FORMATS`.
      path: A file if it ends like files of the format, else a directory of files.
      max_items: How many at most; all if `None`.
      shard_items: Items of a file in a directory; about 256 MiB of data if `None`.
      overwrite: Whether to replace an older export.
      use_signature: Whether columns have the names of the table's signature.
      progress: Whether to draw it; `None`: on a terminal.

    Returns:
      The number of items, and where they are.

    Raises:
      TableNotFoundError: If there is no such table.
      InvalidArgumentError: If the output exists, or if items differ in more than their lengths.
      FailedPreconditionError: If the format needs a package that is not there.
      UnimplementedError: If the server is one of dm-reverb, which cannot be read.
    """
    check_table(source, table)
    make_file, suffixes = FORMATS[format_]
    output = Output(path, suffixes, overwrite)
    if output.is_file and shard_items is not None:
        raise InvalidArgumentError(
            f"--shard-items splits an export into files, but --output {path} is a single file"
        )
    total = source.tables[table].current_size
    total = total if max_items is None else min(total, max_items)
    signature = source.tables[table].signature if use_signature else None
    with Progress("exporting", enabled=progress) as bar:
        feed = _Feed(source.scan(table), max_items, lambda count: bar(count, max(total, count)))
        with contextlib.closing(feed), output:
            if feed.next_item is None:
                layout = columns.layout_of_signature(signature)
            else:
                layout = columns.layout_of_item(feed.next_item, signature)
            counts = {}
            while not counts or feed.next_item is not None:
                limit = _Limit(None, None) if output.is_file else _limit(shard_items)
                file_path = output.new_file()
                file = make_file(file_path, layout)
                counts[file_path.name] = _write(file, feed, limit, layout)
            output.describe(_description(source, table, format_, layout, counts, make_file))
    return sum(counts.values()), output.path


class _Limit:
    """How much a file takes: a number of items, of bytes, or anything."""

    def __init__(self, items: int | None, bytes_: int | None) -> None:
        self._items = items
        self._bytes = bytes_

    def allows(self, num_items: int, num_bytes_: int) -> bool:
        """Whether another item may follow so many."""
        return (self._items is None or num_items < self._items) and (
            self._bytes is None or num_bytes_ < self._bytes
        )


def _limit(shard_items: int | None) -> _Limit:
    return _Limit(None, SHARD_BYTES) if shard_items is None else _Limit(shard_items, None)


class _Feed:
    """The items of a scan, with a look at the next one."""

    def __init__(self, items: Iterator[StoredItem], max_items: int | None, told: Any) -> None:
        self._items = items
        self._max_items = max_items
        self._told = told
        self._num_taken = 0
        self.next_item = next(items, None)

    def take(self, limit: _Limit) -> Iterator[StoredItem]:
        """As many items as a limit allows."""
        num_items = size = 0
        while self.next_item is not None and limit.allows(num_items, size):
            item = self.next_item
            num_items += 1
            size += sum(num_bytes(column) for column in item.columns)
            self._num_taken += 1
            self._told(self._num_taken)
            ended = self._max_items is not None and self._num_taken >= self._max_items
            self.next_item = None if ended else next(self._items, None)
            yield item

    def close(self) -> None:
        """Ends the scan."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


def _write(file: _File, feed: _Feed, limit: _Limit, layout: list[Column]) -> int:
    """Fills one file; returns its number of items."""
    num_items = 0
    try:
        for batch in columns.batches(feed.take(limit), layout):
            file.write(batch)
            num_items += batch.num_items
        file.close()
    except BaseException:
        file.abandon()
        raise
    return num_items


def _description(
    source: Source,
    table: str,
    format_: str,
    layout: list[Column],
    counts: dict[str, int],
    file: type[_File],
) -> dict[str, Any]:
    fields = [Column(name, dtype, None) for name, dtype in columns.ITEM_FIELDS.items()]
    described = [
        {
            "name": column.name,
            "dtype": column.dtype_name,
            "shape": column.shape,
            "stored_as": file.stored_as(column),
        }
        for column in [*fields, *layout]
    ]
    return {
        "format": format_,
        "source": source.name,
        "table": table,
        "num_items": sum(counts.values()),
        "item_fields": described[: len(fields)],
        "columns": described[len(fields) :],
        "files": [{"name": name, "num_items": count} for name, count in counts.items()],
    }
