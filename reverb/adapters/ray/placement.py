# SPDX-License-Identifier: Apache-2.0
"""Which node of a Ray cluster gets which shard."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from reverb.errors import InvalidArgumentError, ResourceExhaustedError

# The least that Ray takes: a shard only has to be on a node that has the resource.
_TRACE = 0.001
_WITH = "with:"


@dataclasses.dataclass(frozen=True)
class Node:
    """A node that is alive.

    Attributes:
      node_id: Ray's id of the node.
      resources: All that it has, also what is in use.
      is_head: Whether it is the head of the cluster.
    """

    node_id: str
    resources: Mapping[str, float]
    is_head: bool = False


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a shard belongs, and what it takes there.

    Attributes:
      node_id: The node, as long as it is alive; otherwise the shard goes to another one.
      options: `num_cpus`, `memory`, `resources` and so on, as actors take them.
    """

    node_id: str
    options: Mapping[str, Any]


def nodes_of(entries: Sequence[Mapping[str, Any]]) -> list[Node]:
    """Returns the nodes that are alive, from `ray.nodes()`, in an order that stays the same."""
    return sorted(
        (
            Node(
                node_id=entry["NodeID"],
                resources=dict(entry["Resources"]),
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
      InvalidArgumentError: If it is none of the known ones.
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
    """Returns how many shards a placement has if the program does not say it; `None`: unknown."""
    if placement == "per_node":
        return len(nodes)
    return len(placement) if not isinstance(placement, str) else None


def place(
    count: int,
    placement: str | Sequence[str],
    resources: Mapping[str, Any],
    nodes: Sequence[Node],
    taken: Sequence[str] = (),
) -> list[Place]:
    """Chooses a node for each of `count` shards.

    Args:
      count: Number of shards to place.
      placement: As in `start`.
      resources: What a shard takes: `num_cpus`, `memory` in bytes, `resources`.
      nodes: All nodes that are alive.
      taken: Nodes of the shards that there are already, once for each.

    Raises:
      InvalidArgumentError: If a node of the list is not alive, or if `per_node` has fewer nodes
        than shards.
      ResourceExhaustedError: If no node has room; says what a shard takes.
    """
    options = dict(resources)
    candidates = list(nodes)
    if isinstance(placement, str) and placement.startswith(_WITH):
        name = placement[len(_WITH) :]
        candidates = [node for node in nodes if node.resources.get(name, 0) > 0]
        if not candidates:
            raise ResourceExhaustedError(
                f"placement={placement!r}: no node has the resource {name!r}"
            )
        options["resources"] = {name: _TRACE} | dict(options.get("resources", {}))
    elif not isinstance(placement, str):
        by_id = {node.node_id: node for node in nodes}
        missing = [it for it in placement if it not in by_id]
        if missing:
            raise InvalidArgumentError(
                f"placement names nodes that are not alive: {missing}; alive are {sorted(by_id)}"
            )
        candidates = [by_id[it] for it in dict.fromkeys(placement)]
    load = {node.node_id: taken.count(node.node_id) for node in nodes}
    places = []
    for _ in range(count):
        free = [it for it in candidates if load[it.node_id] < _room(it, options)]
        if placement == "per_node":
            free = [it for it in free if load[it.node_id] == 0]
            if not free and all(load[it.node_id] for it in candidates):
                raise InvalidArgumentError(
                    f"placement='per_node' puts one shard on each node, and there are "
                    f"{len(candidates)} nodes for {count + len(taken)} shards"
                )
        if not free:
            raise ResourceExhaustedError(
                f"no node has room for one more shard, which takes {options}: {len(places)} of "
                f"{count} shards can be placed on {len(candidates)} nodes"
            )
        node = min(free, key=lambda it: load[it.node_id])
        load[node.node_id] += 1
        places.append(Place(node.node_id, options))
    return places


def _room(node: Node, options: Mapping[str, Any]) -> float:
    """How many shards fit on a node that has nothing else to do."""
    wanted = {"CPU": options.get("num_cpus", 0), "memory": options.get("memory", 0)}
    wanted |= {"GPU": options.get("num_gpus", 0)} | dict(options.get("resources", {}))
    return min(
        (node.resources.get(name, 0) // amount for name, amount in wanted.items() if amount),
        default=float("inf"),
    )
