# SPDX-License-Identifier: Apache-2.0
"""Largest priorities, smallest probabilities and samplers of a group of servers."""

import contextlib

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError
from support.waiting import wait_until


@contextlib.contextmanager
def group_of(make_sampler):
    """The servers of a group with two shards, and a client of it."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                reverb.Server([testing.table("t", sampler=make_sampler(), max_size=100)])
            )
            for _ in range(2)
        ]
        places = ",".join(f"localhost:{server.port}" for server in servers)
        yield servers, reverb.Client("shards:///" + places)


WRITES = {
    "insert": lambda client: client.insert(0, {"t": reverb.MAX_PRIORITY}),
    "insert_batch": lambda client: client.insert_batch([np.zeros(2)], {"t": reverb.MAX_PRIORITY}),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("has_sampled", [True, False], ids=["learner", "writer"])
def test_a_new_item_gets_the_largest_priority_of_all_shards(write, has_sampled):
    with group_of(lambda: reverb.selectors.Prioritized(1.0)) as (servers, client):
        shards = [server.localhost_client() for server in servers]
        shards[0].insert(0, {"t": 2.0})
        shards[1].insert(0, {"t": 8.0})
        if has_sampled:
            client.sample_batch("t", 4)
            wait_until(lambda: client.server_info()["t"].max_priority == 8.0)
        for _ in range(4):
            write(client)
        assert min(len(list(shard.scan("t"))) for shard in shards) > 1
        found = sorted(sample.info.priority for shard in shards for sample in shard.scan("t"))
        assert found == [2.0] + [8.0] * (len(found) - 1)
        assert client.server_info()["t"].max_priority == 8.0


def test_the_smallest_probability_is_that_of_the_group():
    with group_of(lambda: reverb.selectors.Prioritized(1.0)) as (servers, client):
        for server, priorities in zip(servers, ([1.0, 3.0], [2.0, 4.0]), strict=True):
            server.localhost_client().insert_batch(np.arange(2), {"t": priorities})
        # A shard has told its own with its first items.
        wait_until(lambda: (client.sample_batch("t", 64).min_probability > 0).all())
        assert client.sample_batch("t", 64).min_probability == pytest.approx([0.1] * 64)


@pytest.mark.parametrize("make", [reverb.selectors.Shuffle, lambda: reverb.selectors.Recent(5.0)])
def test_samplers_that_need_all_items_are_refused(make):
    with (
        group_of(make) as (_, client),
        pytest.raises(InvalidArgumentError, match="which a group of servers cannot have"),
    ):
        client.insert(0, {"t": 1.0})
