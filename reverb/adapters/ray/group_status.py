# SPDX-License-Identifier: Apache-2.0
"""What a group tells of itself."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class ShardStatus:
    """One shard of a group.

    Attributes:
      index: Its number.
      state: "serving"; "starting" while it loads; "failed", see `error`; "lost" if it is not heard
        of, and Ray starts it again.
      address: Where clients reach it.
      node_id: Ray's id of its node.
      pid: Its process there.
      num_starts: How often it has come up; less if the directory died with it.
      epoch: Of the map that it has.
      num_slots: How many of the 4,096 slots it owns.
      is_draining: Whether it is about to leave.
      last_seen_s: Seconds since it was heard of.
      sizes: Number of items of each table.
      restored_from: The checkpoint that it started with; `None`: it started empty.
      sees_directory: Whether it sees the checkpoint directory of the group; `False`: its disk is
        its own, so that a group cannot be saved.
      is_actor: Whether Ray starts it again; a shard of `serve_here` ends with its process.
      error: Why it could not start.
    """

    index: int
    state: str
    address: str
    node_id: str
    pid: int
    num_starts: int
    epoch: int
    num_slots: int
    is_draining: bool
    last_seen_s: float
    sizes: Mapping[str, int]
    restored_from: str | None
    sees_directory: bool
    is_actor: bool
    error: str | None


@dataclasses.dataclass(frozen=True)
class GroupStatus:
    """A whole group.

    Attributes:
      name: Its name.
      epoch: Of its map.
      address: What clients connect to.
      shards: Its shards, by number.
      sizes: Number of items of each table in all shards that answer.
      latest_checkpoint: The last checkpoint of the group; `None`: there is none.
      latest_error: Why the last save of the group failed; `None`: it did not.
    """

    name: str
    epoch: int
    address: str
    shards: Mapping[int, ShardStatus]
    sizes: Mapping[str, int]
    latest_checkpoint: str | None
    latest_error: str | None

    @property
    def is_complete(self) -> bool:
        """Whether all shards serve, and all have the present map."""
        return bool(self.shards) and all(
            shard.state == "serving" and shard.epoch == self.epoch for shard in self.shards.values()
        )
