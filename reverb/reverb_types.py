# SPDX-License-Identifier: Apache-2.0
"""Types of signatures and selectors, and the status of servers, tables and checkpoints."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from reverb._nests import structured_value
from reverb.core import native, protos

Fifo = native.FifoSelector
Heap = native.HeapSelector
Lifo = native.LifoSelector
Prioritized = native.PrioritizedSelector
Uniform = native.UniformSelector

SelectorType = Fifo | Heap | Lifo | Prioritized | Uniform

# Dicts, lists, tuples and named tuples whose leaves have a `shape` and a `dtype`; see `specs`.
SpecNest = Any

# By the number of `PriorityTableCheckpoint.WhenFull`.
_WHEN_FULL = ("remove", "wait")


@dataclasses.dataclass
class TableInfo:
    """A table's options and counters at one moment.

    Fields that are messages have the methods of protobuf, for example
    `info.sampler_options.WhichOneof("distribution")`.

    Example:
      >>> info = client.server_info()["table"]
      >>> print(info.current_size, info.max_size, info.rate_limiter_info.min_size_to_sample)
      1 1000 1

    Attributes:
      name: Name of the table.
      sampler_options: Message `KeyDistributionOptions` of the sampler.
      remover_options: Message `KeyDistributionOptions` of the remover.
      max_size: Maximum number of items.
      max_times_sampled: An item is removed after it was sampled this often; below 1: never.
      rate_limiter_info: Message `RateLimiterInfo`.
      signature: Nest of specs, or `None`. Leaves are `tf.TensorSpec` if TensorFlow was imported,
        else `reverb.specs.TensorSpec`.
      current_size: Number of items.
      num_episodes: Number of episodes that the items refer to.
      num_deleted_episodes: Number of episodes whose last item was removed.
      num_unique_samples: Number of items that were sampled at least once.
      table_worker_time: Message `TableWorkerTime`.
    """

    name: str
    sampler_options: Any
    remover_options: Any
    max_size: int
    max_times_sampled: int
    rate_limiter_info: Any
    signature: SpecNest | None
    current_size: int
    num_episodes: int
    num_deleted_episodes: int
    num_unique_samples: int
    table_worker_time: Any

    @classmethod
    def from_serialized_proto(cls, proto_string: bytes) -> "TableInfo":
        """Parses a serialized `deepmind.reverb.TableInfo` message."""
        proto = protos.TableInfo.FromString(proto_string)
        signature = None
        if proto.HasField("signature"):
            signature = structured_value.decode(proto.signature)
        return cls(
            name=proto.name,
            sampler_options=proto.sampler_options,
            remover_options=proto.remover_options,
            max_size=proto.max_size,
            max_times_sampled=proto.max_times_sampled,
            rate_limiter_info=proto.rate_limiter_info,
            signature=signature,
            current_size=proto.current_size,
            num_episodes=proto.num_episodes,
            num_deleted_episodes=proto.num_deleted_episodes,
            num_unique_samples=proto.num_unique_samples,
            table_worker_time=proto.table_worker_time,
        )


@dataclasses.dataclass(frozen=True)
class MemoryStatus:
    """What the memory of a server is used for, in bytes.

    A chunk counts once, with everything that it keeps in memory, and belongs to the first of the
    kinds below that refers to it. The memory of the process (its RSS) is larger: the allocator
    keeps some freed memory, and there are Python and connections.

    Attributes:
      total: All chunks that the server has seen and that still exist, all items, and messages that
        are not complete. The sum of `tables`, `queued`, `streams` and `other`.
      limit: `max_bytes` of the server; `None` if it has none.
      tables: Referred to by items of tables.
      queued: Of items that wait to be inserted.
      streams: Held by insert streams for later items, and messages that are not complete.
      other: What samplers, writers in the server's process (until the object is deleted) and
        checkpoints still hold.
    """

    total: int
    limit: int | None
    tables: int
    queued: int
    streams: int
    other: int


@dataclasses.dataclass(frozen=True)
class TableStatus:
    """What a table takes of a server's memory.

    Attributes:
      bytes: Of its items and their chunks. A chunk counts once, however many items share it, but in
        each table that has it.
      max_bytes: The limit of the table; `None` if it has none.
      when_full: "remove" or "wait".
      items: Number of items.
      chunks: Number of different chunks.
      forecast_bytes: What it will take with `max_size` items like these, at most `max_bytes`; with
        few items an upper bound by the signature. `None`: not known yet.
    """

    bytes: int
    max_bytes: int | None
    when_full: str
    items: int
    chunks: int
    forecast_bytes: int | None


@dataclasses.dataclass(frozen=True)
class ServerStatus:
    """Status of a server.

    Example:
      >>> status = client.status()
      >>> status.memory.total >= status.memory.tables
      True
      >>> status.tables["replay"].max_bytes is None
      True

    Attributes:
      memory: What its memory is used for.
      tables: Status of each table, by name.
    """

    memory: MemoryStatus
    tables: Mapping[str, TableStatus]

    @classmethod
    def from_serialized_proto(cls, proto_string: bytes) -> "ServerStatus":
        """Parses a serialized `reverb.StatusResponse` message."""
        proto = protos.StatusResponse.FromString(proto_string)
        memory = proto.memory
        return cls(
            memory=MemoryStatus(
                total=memory.total,
                limit=memory.limit or None,
                tables=memory.tables,
                queued=memory.queued,
                streams=memory.streams,
                other=memory.other,
            ),
            tables={
                table.name: TableStatus(
                    bytes=table.bytes,
                    max_bytes=table.max_bytes or None,
                    when_full=_WHEN_FULL[table.when_full],
                    items=table.num_items,
                    chunks=table.num_chunks,
                    forecast_bytes=table.forecast_bytes or None,
                )
                for table in proto.tables
            },
        )


@dataclasses.dataclass(frozen=True)
class CheckpointStatus:
    """Status of a server's checkpoints.

    Example:
      >>> path = client.checkpoint()
      >>> status = client.checkpoint_status()
      >>> print(status.num_saved, status.latest_path == path, status.latest_error)
      1 True None

    Attributes:
      is_saving: Whether the server is saving.
      items_written: Number of items written by the current save, or by the last one.
      items_total: Number of items in the snapshot of all tables; 0 while it is not known.
      bytes_written: Number of bytes written to files.
      latest_path: Path on the server of the last complete checkpoint; `None` if there is none.
      latest_saved_at: Time at which it was completed, in seconds since 1970.
      latest_duration_s: Duration of its save, in seconds.
      latest_pause_ms: How long all tables were locked for it, in milliseconds.
      latest_error: Error of the last save; `None` if it succeeded.
      num_saved: Number of checkpoints that were completed since the server started.
      num_failed: Number of saves that failed since the server started.
      restored_from: The checkpoint that the server loaded; `None` if it started with empty tables.
    """

    is_saving: bool
    items_written: int
    items_total: int
    bytes_written: int
    latest_path: str | None
    latest_saved_at: float | None
    latest_duration_s: float
    latest_pause_ms: float
    latest_error: str | None
    num_saved: int
    num_failed: int
    restored_from: str | None

    @classmethod
    def from_serialized_proto(cls, proto_string: bytes) -> "CheckpointStatus":
        """Parses a serialized `reverb.CheckpointStatusResponse` message."""
        proto = protos.CheckpointStatusResponse.FromString(proto_string)
        return cls(
            is_saving=proto.is_saving,
            items_written=proto.items_written,
            items_total=proto.items_total,
            bytes_written=proto.bytes_written,
            latest_path=proto.latest_path or None,
            latest_saved_at=proto.latest_saved_at_ns / 1e9 if proto.latest_path else None,
            latest_duration_s=proto.latest_duration_s,
            latest_pause_ms=proto.latest_pause_ms,
            latest_error=proto.latest_error or None,
            num_saved=proto.num_saved,
            num_failed=proto.num_failed,
            restored_from=proto.restored_from or None,
        )
