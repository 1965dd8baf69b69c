# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/groups.md.
"""A group of replay servers on a Ray cluster: placed, named, restarted and saved by Ray.

    import ray
    from reverb.adapters import ray as reverb_ray

    ray.init()
    group = reverb_ray.start(make_tables, num_shards=8, name="replay")
    client = group.client()                  # in the program that started the group
    client = reverb_ray.connect("replay")    # in every other process of the Ray cluster

Ray starts and restarts the servers, and keeps their names. It carries no data: clients connect to
the servers directly, and outside the Ray cluster the address of a client is enough.
"""

from reverb.adapters.ray.group import Group, connect, get_group, start
from reverb.adapters.ray.group_status import GroupStatus, ShardStatus
from reverb.adapters.ray.local_shard import LocalShard, serve_here

__all__ = [
    "Group",
    "GroupStatus",
    "LocalShard",
    "ShardStatus",
    "connect",
    "get_group",
    "serve_here",
    "start",
]
