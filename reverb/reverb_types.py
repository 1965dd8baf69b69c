# SPDX-License-Identifier: Apache-2.0
"""Types that appear in several signatures, and what a table tells of itself."""

import dataclasses
from typing import Any

from reverb import structured_value
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
