# SPDX-License-Identifier: Apache-2.0
"""Settings of a group. Ray keeps them, and passes them to actors that it restarts."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import reverb
from reverb.adapters.ray.engine import ray


@dataclasses.dataclass(frozen=True)
class GroupSettings:
    """The arguments of `start`.

    Attributes:
      name: Name of the group.
      run: Id that distinguishes this group from earlier ones of the same name.
      pickled_tables: The pickled function that makes the tables; only shards unpickle it.
      num_shards: Number of shards at the start.
      placement: As in `start`.
      resources: Resources of a shard on its node.
      checkpoint_directory: Directory of checkpoints; empty if nothing is saved.
      checkpoint_interval_s: Time between saves of the group; `None`: only on request.
      keep_latest: Number of checkpoints of the group to keep.
      stores: A store whose directory has those of all shards of a node; `None`: there are none.
      base_port: Shard `i` listens on `base_port + i`; `None`: any free port.
      server_options: More arguments of each `reverb.Server`.
      scheme: Prefix of the group's address for clients.
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
    stores: reverb.Store | None
    base_port: int | None
    server_options: Mapping[str, Any]
    scheme: str
    runtime_env: Mapping[str, Any] | None

    def make_tables(self) -> list[Any]:
        """Makes the program's tables, with sizes and limiters of the whole group."""
        return list(ray.cloudpickle.loads(self.pickled_tables)())

    def store(self, index: int) -> reverb.Store | None:
        """Returns the store of a shard."""
        if self.stores is None:
            return None
        path = pathlib.Path(self.stores.path, f"{self.name}-{index}")
        return dataclasses.replace(self.stores, path=path)

    @staticmethod
    def pickle_tables(make_tables: Callable[[], Sequence[Any]]) -> bytes:
        """Pickles the function that makes the tables."""
        return ray.cloudpickle.dumps(make_tables)


@dataclasses.dataclass(frozen=True)
class ShardSettings:
    """Settings of one shard.

    Attributes:
      group: Settings of the whole group.
      index: Index of the shard.
      num_shards: Number of shards when this one started, itself included.
      checkpoint_name: Name under which it saves; a new shard with an old index has a new name.
      start_from: The checkpoint to load if the shard itself has saved none.
      is_added: Whether it joins a group that runs, and has nothing of its own.
    """

    group: GroupSettings
    index: int
    num_shards: int
    checkpoint_name: str
    start_from: str | None
    is_added: bool = False
