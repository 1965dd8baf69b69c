# SPDX-License-Identifier: Apache-2.0
"""Types of signatures and selectors, and the settings and counters of a table."""

import dataclasses
from typing import Any

from reverb import item_selectors
from reverb._checks.answers import read_message, reads_answer
from reverb._nests import structured_value
from reverb._rollouts.settings import Rollouts, RolloutsInfo
from reverb.core import native, protos

Fifo = native.FifoSelector
Heap = native.HeapSelector
Lifo = native.LifoSelector
Prioritized = native.PrioritizedSelector
Recent = native.RecentSelector
Shuffle = native.ShuffleSelector
Uniform = native.UniformSelector

SelectorType = item_selectors.SelectorType

# Dicts, lists, tuples and named tuples whose leaves have a `shape` and a `dtype`; see `specs`.
SpecNest = Any


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
      max_priority: The largest priority of the items, for a `Prioritized` sampler whose exponent is
        not 0. `None` for other samplers, for an empty table, and if the server does not report it.
      rollouts: `RolloutsInfo` of a table whose items have rollouts; `None` for others.
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
    max_priority: float | None = None
    rollouts: RolloutsInfo | None = None

    def __str__(self) -> str:
        sampled = self.max_times_sampled or "any number of"
        return (
            f"table {self.name} with {self.current_size} of at most {self.max_size} items, each "
            f"sampled {sampled} times"
        )

    @classmethod
    def from_serialized_proto(cls, proto_string: bytes) -> "TableInfo":
        """Parses a serialized `deepmind.reverb.TableInfo` message."""
        return cls.from_proto(protos.TableInfo.FromString(proto_string))

    @classmethod
    @reads_answer
    def all_of(cls, serialized: bytes) -> "list[TableInfo]":
        """Returns the tables of an answer to `server_info`."""
        return [
            cls.from_proto(it) for it in protos.ServerInfoResponse.FromString(serialized).table_info
        ]

    @classmethod
    @reads_answer
    def of_changed(cls, serialized: bytes) -> "TableInfo":
        """Returns the only table of an answer to `configure_tables`."""
        return cls.from_proto(protos.ConfigureTablesResponse.FromString(serialized).tables[0])

    @classmethod
    @reads_answer
    def from_proto(cls, proto: Any) -> "TableInfo":
        """Reads a `deepmind.reverb.TableInfo` message."""
        signature = None
        if proto.HasField("signature"):
            signature = structured_value.decode(proto.signature)
        return read_message(
            cls,
            proto,
            signature=signature,
            max_priority=proto.max_priority if proto.HasField("max_priority") else None,
            rollouts=_rollouts(proto.rollouts, signature) if proto.HasField("rollouts") else None,
        )


def _rollouts(proto: Any, signature: object) -> RolloutsInfo:
    settings = Rollouts.from_proto(proto.settings, signature)
    left = {it.reason: it.count for it in proto.left}
    return read_message(RolloutsInfo, proto, settings=settings, left=left)
