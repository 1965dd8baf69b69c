# SPDX-License-Identifier: Apache-2.0
"""Servers that share the load of the same tables: each is a shard of a group."""

from reverb.cluster.shard import Shard
from reverb.cluster.split_table import split_table

__all__ = ["Shard", "split_table"]
