# SPDX-License-Identifier: Apache-2.0
"""The state of each shard of a group."""

import dataclasses

from reverb._checks.answers import read_message
from reverb.core import native, protos
from reverb.shown_text import shows_no_token

__all__ = ["ShardInfo", "ShardTable"]


@dataclasses.dataclass(frozen=True)
class ShardTable:
    """A table of one shard.

    Attributes:
      size: Number of items.
      mass: Sum of the weights of all items, `priority ** exponent`; number of items if the sampler
        has no weights.
      cursor: Inserts times `samples_per_insert` minus samples.
      min_diff: Current lower bound of the cursor at this shard.
      max_diff: Current upper bound of the cursor at this shard.
      insert_waits: Whether inserts wait.
      sample_waits: Whether samples wait.
    """

    size: int
    mass: float
    cursor: float
    min_diff: float
    max_diff: float
    insert_waits: bool
    sample_waits: bool


@shows_no_token
@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """A shard of a group, as `Client.shard_info` returns it.

    Attributes:
      index: Number of the shard in the group, from 0 on.
      address: Address of the shard.
      server_id: Random id of its server, drawn at the start; `None` if it has never answered.
      num_slots: How many of the 4,096 slots of keys the shard owns.
      state: `"up"`, `"down"` or `"draining"`.
      error: Why it is down; else empty.
      last_seen_s: Seconds since its last answer; `None`: it has never answered.
      tables: Its tables by name; empty if it is down or a server of dm-reverb.
    """

    index: int
    address: str
    server_id: int | None
    num_slots: int
    state: str
    error: str
    last_seen_s: float | None
    tables: dict[str, ShardTable]


def from_row(row: native.ShardRow) -> ShardInfo:
    """Converts the description of a shard by the native client."""
    tables = {
        table.name: read_message(ShardTable, table)
        for table in protos.WatchResponse.FromString(row.tables).tables
    }
    return read_message(ShardInfo, row, tables=tables)


# The public import path.
ShardInfo.__module__ = ShardTable.__module__ = "reverb.cluster"
