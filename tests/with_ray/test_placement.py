# SPDX-License-Identifier: Apache-2.0
"""Which node gets which shard, by tables of nodes; and beside a program that uses a cluster."""

import re
import time
from unittest import mock

import numpy as np
import pytest
import ray

from reverb.adapters.ray.placement import Node, has_room_when_idle, nodes_of, place
from reverb.adapters.ray.shard_stores import choose_indices, newest_stores
from reverb.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from support.waiting import PATIENCE

GIB = 2**30


def node(name, free_cpus, cpus=8, **resources):
    """A node that has further resources, all of them free."""
    # Ray leaves out what is used up.
    free = {"CPU": free_cpus} if free_cpus else {}
    return Node(name, {"CPU": cpus} | resources, free | resources)


def names(count, placement, nodes, taken=(), **resources):
    places = place(count, placement, {"num_cpus": 1} | resources, nodes, taken)
    return [it.node_id for it in places]


def test_spread_leaves_out_full_nodes():
    nodes = [node("a", 0), node("b", 4), node("c", 2)]
    assert names(2, "spread", nodes) == ["b", "c"]
    assert names(4, "spread", nodes) == ["b", "c", "b", "c"]
    assert names(6, "spread", nodes) == ["b", "c", "b", "c", "b", "b"]


def test_spread_prefers_the_emptier_of_equals():
    assert names(3, "spread", [node("a", 1), node("b", 8), node("c", 3)]) == ["b", "c", "a"]


def test_shards_that_are_there_count_as_load_and_not_as_room():
    nodes = [node("a", 7), node("b", 8), node("c", 8)]
    assert sorted(names(2, "spread", nodes, taken=["a"])) == ["b", "c"]
    # The one on "b" uses all that "b" has.
    assert names(1, "spread", [node("a", 1), node("b", 0, cpus=1)], taken=["a", "b"]) == ["a"]


def test_each_resource_of_a_shard_counts():
    nodes = [node("a", 8, memory=4 * GIB), node("b", 2, memory=64 * GIB)]
    assert names(2, "spread", nodes, memory=8 * GIB) == ["b", "b"]
    nodes = [node("a", 8, replay=1), node("b", 0, replay=1), node("c", 8)]
    assert names(2, "with:replay", nodes) == ["a", "a"]
    assert names(1, "with:replay", nodes, resources={"replay": 1}) == ["a"]


def test_a_list_of_nodes_leaves_out_full_ones_of_it():
    nodes = [node("a", 0), node("b", 4), node("c", 4)]
    assert names(2, ["a", "b"], nodes) == ["b", "b"]


def test_shards_go_to_the_nodes_with_their_stores():
    nodes = [node("a", 8), node("b", 8), node("c", 1)]

    def homes_of(*homes, placement="spread"):
        places = place(3, placement, {"num_cpus": 1}, nodes, homes=homes)
        return "".join(it.node_id for it in places)

    assert homes_of("c", "b", "a") == "cba"
    assert homes_of("c", "c", "c") == "cab", "there is room for one"
    assert homes_of("", "a", "") == "bac"
    # One that has none does not take the place of another.
    assert homes_of("", "", "a", placement="per_node") == "bca"
    assert homes_of("x", "abc", "abc") == "cab", "a disk that all share, and a node that is gone"


def test_the_newest_store_of_a_shard_counts():
    times = {"a": {0: 5, 1: 7}, "b": {0: 6}, "c": {1: 7, 3: 1}, "d": {}}
    assert newest_stores(times) == {0: {"b"}, 1: {"a", "c"}, 3: {"c"}}


@pytest.mark.parametrize(
    ("num_shards", "stores", "saved", "indices"),
    [
        (2, (), (), [0, 1]),
        (2, (), (0, 3), [0, 3]),
        (2, (0, 2), (0, 1), [0, 2]),
        (2, (1,), (0, 1), [0, 1]),
        (3, (0, 1), (), [0, 1, 2]),
        (2, (0, 1, 2), (0, 1), "would not have [2]"),
        (3, (0, 5), (0, 1, 2), "would not have [5]"),
    ],
)
def test_no_store_is_left_out(num_shards, stores, saved, indices):
    settings = mock.Mock(num_shards=num_shards)
    if isinstance(indices, list):
        assert choose_indices(settings, stores, saved) == indices
    else:
        with pytest.raises(FailedPreconditionError, match=re.escape(indices)):
            choose_indices(settings, stores, saved)


def test_shards_that_take_nothing_go_anywhere():
    places = place(3, "spread", {"num_cpus": 0}, [node("a", 0), node("b", 0)])
    assert sorted(it.node_id for it in places) == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("count", "placement", "nodes", "resources", "text"),
    [
        (
            3,
            "spread",
            [node("a", 0), node("b", 2.5)],
            {},
            "2 of 3 shards can be placed: each takes 1 CPU (resources_per_shard), and node a has "
            "0 of 8 CPU free, node b has 0.5 of 8 CPU free",
        ),
        (
            1,
            "spread",
            [node("a", 1, memory=4 * GIB), node("b", 8)],
            {"num_cpus": 2, "memory": 16 * GIB},
            "0 of 1 shards can be placed: each takes 2 CPU and 16 GiB memory "
            "(resources_per_shard), and node a has 1 of 8 CPU free and 4 GiB of 4 GiB memory "
            "free, node b has no memory",
        ),
        (
            2,
            "per_node",
            [node("a", 8), node("b", 0)],
            {},
            "1 of 2 shards can be placed: each takes 1 CPU (resources_per_shard), and node b has "
            "0 of 8 CPU free",
        ),
        (
            1,
            "spread",
            [node(f"n{number}", 0) for number in range(10)],
            {},
            "0 of 1 shards can be placed: each takes 1 CPU (resources_per_shard), and "
            + ", ".join(f"node n{number} has 0 of 8 CPU free" for number in range(8))
            + ", 2 more nodes are as full",
        ),
    ],
)
def test_an_error_says_what_is_missing_where(count, placement, nodes, resources, text):
    with pytest.raises(ResourceExhaustedError) as caught:
        names(count, placement, nodes, **resources)
    assert str(caught.value) == text


def test_one_on_each_node_needs_as_many_nodes():
    with pytest.raises(InvalidArgumentError, match="there are 2 nodes for 3 shards"):
        names(2, "per_node", [node("a", 8), node("b", 8)], taken=["a"])


def test_room_that_others_use_is_worth_a_wait():
    nodes = [node("a", 0), node("b", 1)]
    assert has_room_when_idle(16, "spread", {"num_cpus": 1}, nodes)
    assert not has_room_when_idle(17, "spread", {"num_cpus": 1}, nodes)
    assert not has_room_when_idle(1, "with:replay", {"num_cpus": 1}, nodes)


def test_nodes_are_those_that_live():
    entries = [
        {"NodeID": "b", "Alive": True, "Resources": {"CPU": 4.0}},
        {"NodeID": "c", "Alive": False, "Resources": {}},
        {"NodeID": "a", "Alive": True, "Resources": {"CPU": 8.0, "node:__internal_head__": 1.0}},
    ]
    found = nodes_of(entries, {"b": {"CPU": 1.0}, "c": {"CPU": 9.0}})
    assert [(it.node_id, it.free["CPU"], it.is_head) for it in found] == [
        ("a", 8.0, True),
        ("b", 1.0, False),
    ]


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_a_group_starts_beside_a_program_that_fills_nodes(start_group):
    # A class inside a function: Ray's workers cannot import the tests.
    class Busy:
        def node_id(self):
            return ray.get_runtime_context().get_node_id()

    busy = [ray.remote(Busy).options(num_cpus=8).remote() for _ in range(2)]
    full = set(ray.get([it.node_id.remote() for it in busy]))
    assert len(full) == 2
    group = start_group()
    (used,) = {shard.node_id for shard in group.status().shards.values()}
    assert used not in full
    assert group.add_shards(1) == [3]
    text = r"group 'other': 1 of 2 shards can be placed: each takes 4 CPU .*, and node .* has "
    with pytest.raises(ResourceExhaustedError, match=text + r"0 of 8 CPU free, node"):
        start_group(name="other", num_shards=2, resources_per_shard={"num_cpus": 4})
    for it in busy:
        ray.kill(it)
    # Actors that have just ended still count for a moment, so placement waits for them.
    start_group(name="other", num_shards=4, resources_per_shard={"num_cpus": 4})


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_an_idle_writer_does_not_hold_up_a_drain(start_group):
    group = start_group(num_shards=2)
    with group.client().trajectory_writer(1) as writer:
        for number in range(4):
            writer.append([np.int64(number)])
            writer.create_item("table", 1.0, [writer.history[0][-1:]])
            writer.flush()
        # It goes on in the middle of its episode, and then it is still.
        (index,) = (it.index for it in group.status().shards.values() if it.sizes["table"])
        begin = time.monotonic()
        assert group.drain(index) == 4
        assert time.monotonic() - begin < 25 * PATIENCE
        writer.append([np.int64(4)])
        writer.create_item("table", 1.0, [writer.history[0][-1:]])
        writer.flush()
    assert group.status().sizes == {"table": 5}
