# SPDX-License-Identifier: Apache-2.0
"""`reverb export`: writes the items of a table to files that other programs read.

Needs memory for a few batches of items, whatever the size of the table; for a checkpoint, also for
all its encoded chunks.
"""

import contextlib
import itertools
import pathlib
from typing import Any

from reverb.command import npz, parquet, tfrecord
from reverb.command.columns import (
    ITEM_FIELDS,
    Column,
    layout_key,
    layout_of_item,
    layout_of_signature,
)
from reverb.command.file_series import FileSeries, ItemFile, ShardLimit, describe_column
from reverb.command.output import Output
from reverb.command.progress import Progress
from reverb.command.source import Source, StoredItem, check_table
from reverb.errors import InvalidArgumentError

# Size of the data in a file of a directory if `--shard-items` is not given.
SHARD_BYTES = 256 << 20

# Each layout has an open file and some MiB of items in memory.
_MAX_LAYOUTS = 16

# The class that writes a file, and the suffixes of its name.
FORMATS: dict[str, tuple[type[ItemFile], tuple[str, ...]]] = {
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
    """Writes the items of a table, oldest first; returns their number, and the path of the output.

    The items of a file differ only in their number of rows. If items differ in more, there is a
    series of files for each layout. The arguments are the options of the command; see its help.

    Raises:
      TableNotFoundError: If there is no such table.
      InvalidArgumentError: If the output exists, or if items have more layouts than it can hold.
      FailedPreconditionError: If the format needs a package that is not installed.
      UnimplementedError: If the server is a dm-reverb server, whose items cannot be read.
    """
    check_table(source, table)
    file_type, suffixes = FORMATS[format_]
    output = Output(path, suffixes, overwrite)
    if output.is_file and shard_items is not None:
        raise InvalidArgumentError(
            f"--shard-items splits an export into files, but --output {path} is a single file"
        )
    total = source.tables[table].current_size
    total = total if max_items is None else min(total, max_items)
    signature = source.tables[table].signature if use_signature else None
    with (
        Progress("exporting", enabled=progress) as bar,
        contextlib.closing(source.scan(table)) as items,
        output,
        contextlib.closing(_Layouts(output, file_type, _limit(output, shard_items))) as layouts,
    ):
        num_items = 0
        for item in itertools.islice(items, max_items):
            layouts.add(item, signature)
            num_items += 1
            bar(num_items, max(total, num_items))
        if not num_items:
            layouts.add_empty(signature)
        layouts.complete()
        output.describe(
            {
                "format": format_,
                "source": source.name,
                "table": table,
                "num_items": num_items,
                "missing_shards": list(source.missing),
                "item_fields": [
                    describe_column(Column(name, dtype, None), file_type)
                    for name, dtype in ITEM_FIELDS.items()
                ],
                "layouts": layouts.describe(),
            }
        )
    return num_items, output.path


class _Layouts:
    """A series of files for each layout of items."""

    def __init__(self, output: Output, file_type: type[ItemFile], limit: ShardLimit) -> None:
        self._output = output
        self._file_type = file_type
        self._limit = limit
        self._series: dict[tuple[Any, ...], FileSeries] = {}

    def add(self, item: StoredItem, signature: object) -> None:
        key = layout_key(item.columns)
        series = self._series.get(key)
        if series is None:
            self._check_room(item)
            series = self._new_series(key, layout_of_item(item, signature))
        series.add(item)

    def add_empty(self, signature: object) -> None:
        """Makes a file without items."""
        self._new_series((), layout_of_signature(signature))

    def complete(self) -> None:
        for series in self._series.values():
            series.close()

    def close(self) -> None:
        """Abandons files that are not complete."""
        for series in self._series.values():
            series.abandon()

    def describe(self) -> list[dict[str, Any]]:
        return [series.describe() for series in self._series.values()]

    def _new_series(self, key: tuple[Any, ...], layout: list[Column]) -> FileSeries:
        number = len(self._series)

        def new_path(part: int) -> pathlib.Path:
            return self._output.new_file(number, part)

        self._series[key] = FileSeries(layout, self._file_type, self._limit, new_path)
        return self._series[key]

    def _check_room(self, item: StoredItem) -> None:
        if self._series and self._output.is_file:
            raise InvalidArgumentError(
                f"item {item.key} differs from those before it in more than its length, so one "
                f"file cannot hold them: {_layout_text(item)}; give a directory as --output"
            )
        if len(self._series) == _MAX_LAYOUTS:
            raise InvalidArgumentError(
                f"items of the table have more than {_MAX_LAYOUTS} layouts, the next is "
                f"that of item {item.key}: {_layout_text(item)}; such a table cannot be exported"
            )


def _layout_text(item: StoredItem) -> str:
    parts = []
    for column in layout_of_item(item, None):
        sizes = ", ".join("?" if size is None else str(size) for size in column.shape)
        parts.append(f"{column.dtype_name} [{sizes}]")
    return ", ".join(parts)


def _limit(output: Output, shard_items: int | None) -> ShardLimit:
    if output.is_file:
        return ShardLimit()
    return ShardLimit(bytes_=SHARD_BYTES) if shard_items is None else ShardLimit(items=shard_items)
