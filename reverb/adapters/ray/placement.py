# SPDX-License-Identifier: Apache-2.0
"""Chooses nodes of a Ray cluster for shards."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from reverb.errors import InvalidArgumentError, ResourceExhaustedError

# The smallest amount that Ray accepts; it only ties a shard to nodes that have the resource.
_TRACE = 0.001
_WITH = "with:"
_GIB = 2**30
# Maximum number of nodes in an error.
_MAX_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Node:
    """A node that is alive.

    Attributes:
      node_id: Ray's id of the node.
      resources: All its resources, including those in use.
      free: Its free resources.
      is_head: Whether it is the head of the cluster.
    """

    node_id: str
    resources: Mapping[str, float]
    free: Mapping[str, float]
    is_head: bool = False


@dataclasses.dataclass(frozen=True)
class ShardNode:
    """The node of a shard, and the resources that it takes there.

    Attributes:
      node_id: The node, as long as it is alive; otherwise the shard goes to another one.
      options: Options of the actor: `num_cpus`, `memory`, `resources` and so on.
    """

    node_id: str
    options: Mapping[str, Any]


def nodes_of(
    entries: Sequence[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]
) -> list[Node]:
    """Returns the nodes of `ray.nodes()` that are alive, in a stable order.

    A node without free resources, which are by its id, counts as idle.
    """
    return sorted(
        (
            Node(
                node_id=entry["NodeID"],
                resources=dict(entry["Resources"]),
                free=dict(free.get(entry["NodeID"], entry["Resources"])),
                is_head="node:__internal_head__" in entry["Resources"],
            )
            for entry in entries
            if entry["Alive"]
        ),
        key=lambda node: (not node.is_head, node.node_id),
    )


def check_placement(placement: str | Sequence[str]) -> None:
    """Checks the argument `placement` of `start`.

    Raises:
      InvalidArgumentError: If it is unknown.
    """
    if isinstance(placement, str):
        if placement in ("spread", "per_node") or (
            placement.startswith(_WITH) and len(placement) > len(_WITH)
        ):
            return
    elif placement and all(isinstance(it, str) for it in placement):
        return
    raise InvalidArgumentError(
        "placement must be 'spread', 'per_node', 'with:<resource>' or a list of ids of nodes, got "
        f"{placement!r}"
    )


def default_num_shards(placement: str | Sequence[str], nodes: Sequence[Node]) -> int | None:
    """Returns the number of shards that a placement defines; `None`: it defines none."""
    if placement == "per_node":
        return len(nodes)
    return len(placement) if not isinstance(placement, str) else None


def place(
    count: int,
    placement: str | Sequence[str],
    resources: Mapping[str, Any],
    nodes: Sequence[Node],
    taken: Sequence[str] = (),
    homes: Sequence[Collection[str]] = (),
) -> list[ShardNode]:
    """Chooses a node for each of `count` shards, among those with room for it now.

    A shard goes to a node of its `homes`, which have its store. Otherwise the node with the fewest
    shards of the group gets the next one; among several, the node with the most free resources.
    `taken` are the nodes of the existing shards, once for each shard.

    Raises:
      InvalidArgumentError: If a node of the list is not alive, or if `per_node` has fewer nodes
        than shards.
      ResourceExhaustedError: If the nodes lack room; the text says for each node which resources a
        shard lacks there.
    """
    options = dict(resources)
    candidates = _candidates(placement, nodes)
    if isinstance(placement, str) and placement.startswith(_WITH):
        options["resources"] = {placement[len(_WITH) :]: _TRACE} | options.get("resources", {})
    one_each = placement == "per_node"
    load = {node.node_id: taken.count(node.node_id) for node in nodes}
    unused = [node for node in candidates if not load[node.node_id]]
    if one_each and count > len(unused):
        raise InvalidArgumentError(
            f"placement='per_node' puts one shard on each node, and there are {len(candidates)} "
            f"nodes for {count + len(taken)} shards"
        )
    wanted = _wanted(options)
    free = {node.node_id: dict(node.free) for node in candidates}
    homes = homes or [()] * count
    places: dict[int, ShardNode] = {}
    for shard in sorted(range(count), key=lambda it: free.keys().isdisjoint(homes[it])):
        room = {node_id: _num_that_fit(left, wanted) for node_id, left in free.items()}
        open_nodes = [
            it for it in candidates if room[it.node_id] >= 1 and not (one_each and load[it.node_id])
        ]
        if not open_nodes:
            short = [it for it in candidates if not (one_each and load[it.node_id])]
            raise ResourceExhaustedError(_no_room(count, len(places), wanted, short, free))
        node = min(
            open_nodes,
            key=lambda it: (it.node_id not in homes[shard], load[it.node_id], -room[it.node_id]),
        )
        load[node.node_id] += 1
        for name, amount in wanted.items():
            free[node.node_id][name] -= amount
        places[shard] = ShardNode(node.node_id, options)
    return [places[it] for it in range(count)]


def has_room_when_idle(
    count: int,
    placement: str | Sequence[str],
    resources: Mapping[str, Any],
    nodes: Sequence[Node],
) -> bool:
    """Whether `count` shards could be placed if all resources were free."""
    idle = [dataclasses.replace(node, free=node.resources) for node in nodes]
    try:
        place(count, placement, resources, idle)
    except ResourceExhaustedError:
        return False
    return True


def _candidates(placement: str | Sequence[str], nodes: Sequence[Node]) -> list[Node]:
    """The nodes that a placement allows."""
    if not isinstance(placement, str):
        by_id = {node.node_id: node for node in nodes}
        missing = [it for it in placement if it not in by_id]
        if missing:
            raise InvalidArgumentError(
                f"placement names nodes that are not alive: {missing}; alive are {sorted(by_id)}"
            )
        return [by_id[it] for it in dict.fromkeys(placement)]
    if not placement.startswith(_WITH):
        return list(nodes)
    name = placement[len(_WITH) :]
    having = [node for node in nodes if node.resources.get(name, 0) > 0]
    if not having:
        raise ResourceExhaustedError(f"placement={placement!r}: no node has the resource {name!r}")
    return having


def _wanted(options: Mapping[str, Any]) -> dict[str, float]:
    """Resources of a shard, by Ray's names."""
    named = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus")}
    named |= {"memory": options.get("memory")} | dict(options.get("resources", {}))
    return {name: amount for name, amount in named.items() if amount}


def _num_that_fit(there: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    """Number of shards that fit into these resources."""
    return min(
        (there.get(name, 0) // amount for name, amount in wanted.items()), default=float("inf")
    )


def _no_room(
    count: int,
    num_placed: int,
    wanted: Mapping[str, float],
    nodes: Sequence[Node],
    free: Mapping[str, Mapping[str, float]],
) -> str:
    """A sentence about the missing resources of each node."""
    lacks = []
    for node in nodes[:_MAX_SHOWN]:
        left = free[node.node_id]
        short = [
            f"{_amount(name, left.get(name, 0))} of {_amount(name, whole)} {name} free"
            if (whole := node.resources.get(name, 0))
            else f"no {name}"
            for name, amount in wanted.items()
            if left.get(name, 0) < amount
        ]
        lacks.append(f"node {node.node_id} has {' and '.join(short)}")
    if len(nodes) > _MAX_SHOWN:
        lacks.append(f"{len(nodes) - _MAX_SHOWN} more nodes are as full")
    takes = " and ".join(f"{_amount(name, amount)} {name}" for name, amount in wanted.items())
    return (
        f"{num_placed} of {count} shards can be placed: each takes {takes} (resources_per_shard), "
        f"and {', '.join(lacks)}"
    )


def _amount(name: str, value: float) -> str:
    return f"{value / _GIB:.4g} GiB" if name.endswith("memory") else f"{value:g}"
