# SPDX-License-Identifier: Apache-2.0
"""The names of the tables of a server, and the number of items in each."""

import numpy as np
import pytest

import reverb
from reverb.errors import TableNotFoundError
from support.hosts import HOSTS, on_both_hosts


def tables():
    return [reverb.Table.queue(name, 100) for name in ("b", "a")]


@on_both_hosts
def test_tables_and_sizes(host, start):
    client = reverb.Client(f"{host}:{start(*tables()).port}")
    assert client.tables() == list(client.server_info()) == ["b", "a"]
    assert (client.size("a"), client.size("b")) == (0, 0)
    client.insert_batch({"x": np.zeros((3, 2))}, {"a": 1.0})
    assert (client.size("a"), client.size("b")) == (3, 0)
    with pytest.raises(TableNotFoundError) as caught:
        client.size("c")
    expected = "Priority table c was not found. The tables of this server are: a, b."
    assert str(caught.value) == expected


def test_the_size_of_a_table_of_a_group_is_the_sum(start):
    servers = [start(*tables()) for _ in range(3)]
    group = reverb.Client("shards:///" + ",".join(f"127.1:{server.port}" for server in servers))
    group.insert_batch({"x": np.zeros((30, 2))}, {"a": 1.0})
    shards = [reverb.Client(f"{HOSTS['remote']}:{server.port}") for server in servers]
    assert group.size("a") == sum(shard.size("a") for shard in shards) == 30
    assert group.tables() == ["b", "a"]
