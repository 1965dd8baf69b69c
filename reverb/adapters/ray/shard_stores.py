# SPDX-License-Identifier: Apache-2.0
"""Finds the stores of shards on the nodes of a Ray cluster."""

import logging
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence

from reverb.adapters.ray.engine import ray
from reverb.adapters.ray.group_settings import GroupSettings
from reverb.adapters.ray.names import result_of
from reverb.adapters.ray.placement import Node
from reverb.errors import FailedPreconditionError, ReverbError

__all__ = ["choose_indices", "files_of", "find_stores", "newest_stores"]

# How long a node may take to start a process that looks for stores.
_LOOK_S = 60.0

_logger = logging.getLogger("reverb.ray")


def files_of(directory: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Returns the files of a store; none if there is no store."""
    return list(pathlib.Path(directory).glob("*.seg"))


def find_stores(settings: GroupSettings, nodes: Sequence[Node]) -> Mapping[int, set[str]]:
    """Returns the nodes with the newest store of each shard of a group, by the shard's index.

    Several nodes have the same one if they share a disk. A node that does not answer has none,
    which the log says.
    """
    if settings.stores is None:
        return {}
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    look = ray.remote(_times_of_stores)
    calls = {
        node.node_id: look.options(
            num_cpus=0,
            scheduling_strategy=affinity(node.node_id, soft=False),
            runtime_env=settings.runtime_env,
        ).remote(settings.stores.path, settings.name)
        for node in nodes
    }
    ray.wait(list(calls.values()), num_returns=len(calls), timeout=_LOOK_S)
    found = {}
    for node_id, call in calls.items():
        try:
            found[node_id] = result_of(call, 0, f"node {node_id}")
        except ReverbError as error:
            text = "group '%s' does not know which stores there are: %s"
            _logger.warning(text, settings.name, error)
    return newest_stores(found)


def newest_stores(times: Mapping[str, Mapping[int, int]]) -> dict[int, set[str]]:
    """Returns the nodes with the newest store of each shard.

    `times` are when each store has changed, by the id of the node and the index of the shard.
    """
    newest = {
        index: max(of_node.get(index, 0) for of_node in times.values())
        for index in {index for of_node in times.values() for index in of_node}
    }
    return {
        index: {node_id for node_id, of_node in times.items() if of_node.get(index) == time}
        for index, time in newest.items()
    }


def choose_indices(
    settings: GroupSettings, stores: Collection[int], saved: Collection[int]
) -> list[int]:
    """Returns the indices of a new group's shards: those that have stores, else those of `saved`.

    Raises:
      FailedPreconditionError: If a store would be left out.
    """
    if len(stores) == settings.num_shards:
        return sorted(stores)
    indices = sorted(saved) or list(range(settings.num_shards))
    if left_out := sorted(set(stores) - set(indices)):
        raise FailedPreconditionError(
            f"store_directory on the nodes has stores of the shards {sorted(stores)} of group "
            f"'{settings.name}', which would not have {left_out} with num_shards="
            f"{settings.num_shards}: start it as it was, save a checkpoint and make one for "
            f"{settings.num_shards} shards with `reverb reshard`, or move these stores away"
        )
    return indices


def _times_of_stores(directory: str, name: str) -> dict[int, int]:
    """Returns when the stores of a group on this node have changed, by the shard's index."""
    found = {}
    for path in pathlib.Path(directory).glob(f"{name}-*"):
        index = path.name.removeprefix(f"{name}-")
        if index.isdecimal() and (files := files_of(path)):
            found[int(index)] = max(file.stat().st_mtime_ns for file in files)
    return found
