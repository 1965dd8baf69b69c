# SPDX-License-Identifier: Apache-2.0
"""The status of a group."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class ShardStatus:
    """One shard of a group.

    Attributes:
      index: Index of the shard.
      state: "serving"; "starting" while it loads; "failed", see `error`; "lost" if it is silent,
        and Ray restarts it.
      address: Address of the shard for clients.
      node_id: Ray's id of its node.
      pid: Id of its process on that node.
      num_starts: How often it has started; too small if the directory died at the same time.
      epoch: Epoch of its map.
      num_slots: How many of the 4,096 slots it owns.
      is_draining: Whether it is about to leave.
      last_seen_s: Seconds since its last message.
      sizes: Number of items of each table.
      restored_from: The checkpoint that it loaded, or the store that it had; `None`: it started
        empty.
      sees_directory: Whether it sees the checkpoint directory of the group; `False`: it has its own
        disk, so the group cannot be saved.
      is_actor: Whether Ray restarts it; a shard of `serve_here` ends with its process.
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
      name: Name of the group.
      epoch: Epoch of its map.
      address: Address for clients.
      shards: The shards, by index.
      sizes: Number of items of each table in all shards that answer.
      latest_checkpoint: The last checkpoint of the group; `None` if there is none.
      latest_error: Error of the last save of the group; `None` if it succeeded.
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
