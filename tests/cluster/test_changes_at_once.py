# SPDX-License-Identifier: Apache-2.0
"""Several clients change the tables of one group at the same time."""

import pytest

import reverb
from reverb import testing
from reverb.cluster.directory import parse_map
from reverb.cluster.shard_calls import map_of
from support.waiting import Background

NUM_SHARDS = 3
NUM_CLIENTS = 3


@pytest.fixture
def servers(start):
    shards = [reverb.cluster.Shard(index, NUM_SHARDS, "group") for index in range(NUM_SHARDS)]
    return [start(testing.table("table", max_size=300), shard=shard) for shard in shards]


def change_often(address, number):
    client = reverb.Client(address)
    for step in range(5):
        client.configure_table("table", max_size=NUM_SHARDS * (100 * number + step + 1))


# Before a change took back what another one had done to the shards meanwhile, one in eight groups
# ended with the parts of one client and the map of another.
@pytest.mark.parametrize("repeat", range(15))
def test_the_parts_of_all_shards_are_those_of_the_map(servers, repeat):
    address = "shards:///" + ",".join(f"localhost:{it.port}" for it in servers)
    clients = [Background(change_often, address, number) for number in range(NUM_CLIENTS)]
    for client in clients:
        client.result()
    maps = [parse_map(map_of(it.localhost_client())) for it in servers]
    assert len({it.epoch for it in maps}) == 1
    [max_size] = {it.tables[0].max_size for it in maps}
    parts = [it.server_info()["table"].max_size for it in servers]
    assert parts == [max_size // NUM_SHARDS] * NUM_SHARDS
