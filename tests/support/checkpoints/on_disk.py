# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as lists of messages, read and written without the core.

A checkpoint is a directory with `tables.tfrecord`, `items.tfrecord` and `chunks.tfrecord`, complete
when it has a file `DONE`.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2
from support.checkpoints import chunk_tensors, tfrecords

TABLES = "tables.tfrecord"
ITEMS = "items.tfrecord"
CHUNKS = "chunks.tfrecord"
DONE = "DONE"
FILES = (TABLES, ITEMS, CHUNKS)


@dataclasses.dataclass
class Stored:
    """The content of a checkpoint.

    Attributes:
      tables: Messages `PriorityTableCheckpoint`.
      items: Messages `PrioritizedItem`, of all tables; `None`: there is no file of them.
      chunks: Messages `ChunkData`.
    """

    tables: list[Any] = dataclasses.field(default_factory=list)
    items: list[Any] | None = dataclasses.field(default_factory=list)
    chunks: list[Any] = dataclasses.field(default_factory=list)

    def table(self, name: str = "table") -> Any:
        """Returns the record of a table."""
        (found,) = [table for table in self.tables if table.table_name == name]
        return found

    def items_of(self, name: str = "table") -> list[Any]:
        """Returns the items of a table, in the order of the file."""
        return [item for item in self.items or [] if item.table == name]

    def columns(self, item: Any) -> list[np.ndarray]:
        """Returns the columns of an item, squeezed where it says so."""
        chunks = {}
        for chunk in self.chunks:
            chunks.setdefault(chunk.chunk_key, chunk)  # The first of a key counts.
        return [_column(column, chunks) for column in item.flat_trajectory.columns]


def _column(column: Any, chunks: dict[int, Any]) -> np.ndarray:
    parts = []
    for piece in column.chunk_slices:
        rows = chunk_tensors.decode(chunks[piece.chunk_key], piece.index)
        assert len(rows) >= piece.offset + piece.length
        parts.append(rows[piece.offset : piece.offset + piece.length])
    rows = np.concatenate(parts)
    if column.squeeze:
        (row,) = rows
        return np.asarray(row, rows.dtype)
    return rows


def read(path: str | pathlib.Path, *, compressed: bool = True, verify: bool = True) -> Stored:
    """Reads a checkpoint."""
    path = pathlib.Path(path)

    def messages(name: str, kind: Any) -> list[Any]:
        data = tfrecords.read_file(path / name, compressed=compressed, verify=verify)
        return [kind.FromString(record) for record in data]

    assert (path / DONE).is_file()
    return Stored(
        tables=messages(TABLES, checkpoint_pb2.PriorityTableCheckpoint),
        items=messages(ITEMS, schema_pb2.PrioritizedItem),
        chunks=messages(CHUNKS, schema_pb2.ChunkData),
    )


def write(
    path: str | pathlib.Path,
    stored: Stored,
    *,
    compressed: bool = True,
    done: bytes | None = b"",
    signed: bool = False,
) -> pathlib.Path:
    """Writes a checkpoint as dm-reverb would, or as this package does.

    Args:
      path: Its directory, which is made.
      stored: Content of the checkpoint.
      compressed: Zips each file as a whole, as every recent release does.
      done: Content of `DONE`; `None`: no such file.
      signed: Writes into `DONE` what this package writes.
    """
    path = pathlib.Path(path)
    path.mkdir(parents=True)
    parts = {TABLES: stored.tables, ITEMS: stored.items, CHUNKS: stored.chunks}
    for name, messages in parts.items():
        if messages is not None:
            data = [message.SerializeToString() for message in messages]
            tfrecords.write_file(path / name, data, compressed=compressed)
    if signed:
        done = _signature(path, parts)
    if done is not None:
        (path / DONE).write_bytes(done)
    return path


def _signature(path: pathlib.Path, parts: dict[str, list[Any]]) -> bytes:
    lines = ["reverb-replay of a test"]
    for name, messages in parts.items():
        size = (path / name).stat().st_size
        lines.append(f"{name} records={len(messages)} bytes={size}")
    text = "\n".join(lines) + "\n"
    return f"{text}crc32c={tfrecords.crc32c(text.encode()):08x}\n".encode()


def table_record(
    name: str = "table",
    *,
    sampler: str | dict[str, Any] = "fifo",
    remover: str | dict[str, Any] = "fifo",
    counters: tuple[int, int, int] = (0, 0, 0),
    limiter: tuple[float, float, float, int] = (1.0, -1e308, 1e308, 1),
    **fields: Any,
) -> Any:
    """Returns the record of a table.

    Args:
      name: Name of the table.
      sampler: `fifo`, `lifo`, `uniform`, or for example `{"heap": {"min_heap": True}}`.
      remover: The same.
      counters: How many items were inserted, sampled and deleted.
      limiter: `samples_per_insert`, `min_diff`, `max_diff`, `min_size_to_sample`.
      **fields: Other fields of the message; `max_size` is 1000 otherwise.
    """
    inserts, samples, deletes = counters
    samples_per_insert, min_diff, max_diff, min_size = limiter
    return checkpoint_pb2.PriorityTableCheckpoint(
        table_name=name,
        sampler=options(sampler),
        remover=options(remover),
        rate_limiter=checkpoint_pb2.RateLimiterCheckpoint(
            samples_per_insert=samples_per_insert,
            min_diff=min_diff,
            max_diff=max_diff,
            min_size_to_sample=min_size,
            insert_count=inserts,
            sample_count=samples,
            delete_count=deletes,
        ),
        **({"max_size": 1000} | fields),
    )


def options(selector: str | dict[str, Any]) -> Any:
    """Returns the message of a selector."""
    if isinstance(selector, str):
        selector = {selector: True}
    deterministic = not {"uniform", "prioritized"} & set(selector)
    return schema_pb2.KeyDistributionOptions(**selector, is_deterministic=deterministic)


def numbered(
    values: Sequence[int],
    table: str = "table",
    *,
    priority: float = 1.0,
    steps: int = 1,
    **fields: Any,
) -> tuple[list[Any], list[Any]]:
    """Returns items and chunks, an item a value: a column of the value and those that follow.

    The key of an item is its value, and so is the key of its chunk; each is an episode.
    """
    items, chunks = [], []
    for at, value in enumerate(values):
        rows = np.arange(value, value + steps, dtype=np.int64)
        chunks.append(chunk_tensors.chunk(value, [rows], episode=value))
        item = schema_pb2.PrioritizedItem(key=value, table=table, priority=priority, **fields)
        item.inserted_at.seconds = 1_700_000_000 + at
        column = item.flat_trajectory.columns.add()
        column.chunk_slices.add(chunk_key=value, length=steps)
        items.append(item)
    return items, chunks


def simple(values: Sequence[int], table: str = "table", **fields: Any) -> Stored:
    """Returns a checkpoint of one table with an item a value; see `numbered`, `table_record`."""
    items, chunks = numbered(values, table)
    fields = {"counters": (len(items), 0, 0)} | fields
    return Stored([table_record(table, **fields)], items, chunks)


def with_items_in_tables(stored: Stored) -> Stored:
    """Returns a checkpoint whose items stand in the records of their tables, without a file."""
    tables = []
    for table in stored.tables:
        old = checkpoint_pb2.PriorityTableCheckpoint.FromString(table.SerializeToString())
        old.deprecated_items.extend(stored.items_of(table.table_name))
        tables.append(old)
    return Stored(tables, None, stored.chunks)


def with_old_chunks(stored: Stored) -> Stored:
    """Returns a checkpoint whose chunks have their tensors in the field of before 2021."""
    chunks = []
    for chunk in stored.chunks:
        old = schema_pb2.ChunkData.FromString(chunk.SerializeToString())
        old.deprecated_data.extend(chunk.data.tensors)
        old.ClearField("data")
        old.ClearField("data_tensors_len")
        chunks.append(old)
    return Stored(stored.tables, stored.items, chunks)


def old_item(
    key: int, chunk_keys: Sequence[int], offset: int, length: int, table: str = "table"
) -> Any:
    """Returns an item of before 2021: steps of all columns of a row of chunks."""
    item = schema_pb2.PrioritizedItem(
        key=key, table=table, priority=1.0, deprecated_chunk_keys=chunk_keys
    )
    item.deprecated_sequence_range.offset = offset
    item.deprecated_sequence_range.length = length
    item.inserted_at.seconds = 1_600_000_000
    return item
