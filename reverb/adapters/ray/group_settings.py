# SPDX-License-Identifier: Apache-2.0
"""What a group was started with. Ray keeps it, and gives it to actors that it starts again."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reverb.adapters.ray.engine import ray


@dataclasses.dataclass(frozen=True)
class GroupSettings:
    """The arguments of `start`.

    Attributes:
      name: Name of the group.
      run: Tells this life of the group from others of the same name.
      pickled_tables: The pickled function that makes the tables; only shards unpickle it.
      num_shards: Number of shards at the start.
      placement: As in `start`.
      resources: What a shard takes on its node.
      checkpoint_directory: Where checkpoints lie; empty if nothing is saved.
      checkpoint_interval_s: Time between saves of the group; `None`: only on request.
      keep_latest: Number of checkpoints of the group to keep.
      base_port: Shard `i` listens on `base_port + i`; `None`: any free port.
      server_options: More arguments of each `reverb.Server`.
      scheme: In front of the addresses of clients.
      runtime_env: Ray's runtime environment of the actors.
    """

    name: str
    run: str
    pickled_tables: bytes
    num_shards: int
    placement: str | Sequence[str]
    resources: Mapping[str, Any]
    checkpoint_directory: str
    checkpoint_interval_s: float | None
    keep_latest: int
    base_port: int | None
    server_options: Mapping[str, Any]
    scheme: str
    runtime_env: Mapping[str, Any] | None

    def make_tables(self) -> list[Any]:
        """Makes the tables as the program gave them: with sizes and limiters of the group."""
        return list(ray.cloudpickle.loads(self.pickled_tables)())

    @staticmethod
    def pickle_tables(make_tables: Callable[[], Sequence[Any]]) -> bytes:
        """Pickles the function that makes the tables."""
        return ray.cloudpickle.dumps(make_tables)


@dataclasses.dataclass(frozen=True)
class ShardSettings:
    """What one shard was started with.

    Attributes:
      group: Of the whole group.
      index: Number of the shard.
      num_shards: How many parts the tables have, this one included.
      checkpoint_name: Under which it saves; a new shard of an old number has a new one.
      start_from: The checkpoint that it starts with, if it has saved none itself.
    """

    group: GroupSettings
    index: int
    num_shards: int
    checkpoint_name: str
    start_from: str | None
