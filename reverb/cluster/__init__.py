# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/groups.md.
"""Several servers that share the load of the same tables: shards of a group.

Nothing here needs an engine that runs them; `reverb.adapters.ray` has one.
"""

from reverb._server.shard import Shard
from reverb._server.shard_info import ShardInfo, ShardTable
from reverb._server.split_table import split_table
from reverb.cluster.coordinator import Coordinator

__all__ = ["Coordinator", "Shard", "ShardInfo", "ShardTable", "split_table"]
