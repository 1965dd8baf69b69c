# SPDX-License-Identifier: Apache-2.0
"""Types that appear in several signatures, and what a table tells of itself."""

import dataclasses
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


@dataclasses.dataclass
class TableInfo:
    """A table's options and counters at one moment.

    The parts that are messages have protobuf's methods, for example
    `info.sampler_options.WhichOneof("distribution")`.

    Attributes:
      name: Name of the table.
      sampler_options: Message `KeyDistributionOptions` of the selector that picks samples.
      remover_options: The same of the selector that picks what to remove.
      max_size: Number of items that the table holds at most.
      max_times_sampled: An item is removed after as many samples; below 1 means never.
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
        """Reads a serialized `deepmind.reverb.TableInfo` message."""
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
class CheckpointStatus:
    """What became of a server's checkpoints.

    Attributes:
      is_saving: Whether one is being written.
      items_written: Items written of the present one, or of the last.
      items_total: Items of all tables at its moment; 0 as long as it is not known.
      bytes_written: Bytes of its files so far.
      latest_path: Path of the last one that was completed, on the server; `None` if there is none.
      latest_saved_at: When it was completed, in seconds since 1970.
      latest_duration_s: How long that took, in seconds.
      latest_pause_ms: How long all tables were locked for it, in milliseconds.
      latest_error: Why the last one failed; `None` if it did not.
      num_saved: Number that the server completed since it started.
      num_failed: Number that failed.
      restored_from: The checkpoint that the server started with; `None` if its tables were empty.
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
        """Reads a serialized `reverb.CheckpointStatusResponse` message."""
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
