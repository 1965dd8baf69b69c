# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of a group as one source: the parts of all shards."""

import dataclasses
import heapq
import pathlib
from collections.abc import Generator, Sequence
from typing import Any

from reverb.cluster import group_checkpoint
from reverb.cluster.group_manifest import MANIFEST
from reverb.cluster.shard_tables import tables_from_values
from reverb.command.source import CheckpointSource, Source, StoredItem
from reverb.reverb_types import TableInfo

# A limiter's bound of this size or more means no bound.
_NO_BOUND = 1e300


class GroupCheckpointSource(Source):
    """The tables of a group on disk.

    `parts` are the checkpoints of its shards, and `given` the tables that the program gave to the
    group, as far as they are known.
    """

    kind = "checkpoint"

    def __init__(
        self, name: str, parts: Sequence[pathlib.Path], given: Sequence[TableInfo] = ()
    ) -> None:
        self.name = name
        self._parts = [CheckpointSource(part) for part in parts]
        of_group = {info.name: info for info in given}
        names = dict.fromkeys(table for part in self._parts for table in part.tables)
        self.tables = {
            table: _together(
                [part.tables[table] for part in self._parts if table in part.tables],
                of_group.get(table),
            )
            for table in names
        }

    def scan(self, table: str) -> Generator[StoredItem, None, None]:
        """See `Source`."""
        scans = [part.scan(table) for part in self._parts if table in part.tables]
        yield from heapq.merge(*scans, key=lambda item: item.inserted_at)


def group_source(path: pathlib.Path) -> GroupCheckpointSource | None:
    """Opens the checkpoint of a group, or the latest one in a directory; `None` if there is none.

    If there is no checkpoint of the group, those that its shards saved to `shard-<index>` are used.

    Raises:
      DataLossError: If a part is missing, or is damaged.
    """
    saved = group_checkpoint.latest(path)
    if (path / MANIFEST).exists():
        saved = group_checkpoint.read(path)
        saved.check()
    if saved is not None:
        given = map(TableInfo.from_serialized_proto, tables_from_values(saved.tables))
        paths = [saved.path_of(index) for index in saved.parts]
        return GroupCheckpointSource(str(saved.path), paths, list(given))
    alone = group_checkpoint.shards_alone(path)
    return GroupCheckpointSource(str(path), list(alone.values())) if alone else None


def _together(parts: Sequence[TableInfo], given: TableInfo | None) -> TableInfo:
    """The table of a group: counters are sums; so are settings that the group does not give."""
    total = parts[0]
    first: Any = total.rate_limiter_info
    limiter = type(first)()
    limiter.CopyFrom(first)
    sums = ("current_size", "num_episodes", "num_deleted_episodes", "num_unique_samples")
    numbers = {name: sum(getattr(part, name) for part in parts) for name in ("max_size", *sums)}
    for part in parts[1:]:
        added: Any = part.rate_limiter_info
        limiter.insert_stats.completed += added.insert_stats.completed
        limiter.sample_stats.completed += added.sample_stats.completed
        limiter.min_size_to_sample += added.min_size_to_sample
        for bound in ("min_diff", "max_diff"):
            before = getattr(limiter, bound)
            if abs(before) < _NO_BOUND:
                setattr(limiter, bound, before + getattr(added, bound))
    if given is not None:
        numbers["max_size"] = given.max_size
        of_group: Any = given.rate_limiter_info
        for name in ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff"):
            setattr(limiter, name, getattr(of_group, name))
    return dataclasses.replace(total, **numbers, rate_limiter_info=limiter)
