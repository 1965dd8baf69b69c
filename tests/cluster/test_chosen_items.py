# SPDX-License-Identifier: Apache-2.0
"""Items of a group that are chosen by their keys or by a condition."""

import contextlib

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import TableNotFoundError, UnavailableError
from support.hosts import on_both_hosts

NUM_ITEMS = 300


@pytest.fixture
def servers():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(reverb.Server([testing.table("t")])) for _ in range(3)]


@pytest.fixture
def client(servers, host):
    """A client of a group with the items 0 to 299, whose priorities are their numbers."""
    places = ",".join(f"{host.rpartition('/')[2]}:{server.port}" for server in servers)
    client = reverb.Client(f"shards:///{places}", connect_timeout_s=10)
    # A call goes to one shard.
    for numbers in np.array_split(np.arange(NUM_ITEMS), 30):
        client.insert_batch([numbers], {"t": numbers.astype(float)})
    return client


def values(samples):
    return sorted(int(sample.data[0].ravel()[0]) for sample in samples)


def keys_of(client):
    """Keys by the numbers of the items."""
    keys = np.zeros(NUM_ITEMS, np.uint64)
    for sample in client.scan("t"):
        keys[int(sample.data[0][0])] = sample.info.key
    return keys


@on_both_hosts
def test_all_shards_are_scanned_for_a_condition(servers, client):
    assert values(client.scan("t", where=reverb.Where(priority=(10, 50)))) == list(range(10, 51))
    assert all(len(list(it.localhost_client().scan("t"))) > 0 for it in servers)
    assert values(client.scan("t", columns=[0])) == list(range(NUM_ITEMS))


@on_both_hosts
def test_items_are_fetched_in_the_order_of_their_keys(client):
    order = np.random.default_rng(0).permutation(NUM_ITEMS)
    keys = keys_of(client)[order]
    assert client.fetch("t", keys).data[0].ravel().tolist() == order.tolist()
    mixed = [keys[5], 1, keys[2], keys[5]]
    assert client.fetch("t", mixed).data[0].ravel().tolist() == [order[5], order[2], order[5]]
    assert client.fetch("t", []).data == []
    assert client.fetch("t", [1, 2, 3]).data == []


@on_both_hosts
def test_items_of_writers_without_the_map_are_found(servers, client):
    """Their keys are not in the slots of their shard."""
    foreign = []
    for number, server in enumerate(servers):
        with contextlib.closing(server.localhost_client().writer(1)) as writer:
            for i in range(20):
                writer.append([np.int64(1000 + 100 * number + i)])
                writer.create_item("t", 1, 5000.0 + number)
        own = server.localhost_client()
        foreign += [it.info.key for it in own.scan("t", where=reverb.Where(priority=(5000, None)))]
    batch = client.fetch("t", foreign)
    assert batch.info.key.tolist() == foreign
    assert client.delete_items("t", foreign) == 60
    assert values(client.scan("t")) == list(range(NUM_ITEMS))


@on_both_hosts
def test_the_numbers_of_deleted_items_are_added(client):
    keys = keys_of(client)
    assert client.delete_items("t", [*keys[:50], 1, 2]) == 50
    assert client.delete_items("t", where=reverb.Where(priority=(None, 99))) == 50
    assert client.delete_items("t", keys, where=reverb.Where(priority=(200, None))) == 100
    assert values(client.scan("t")) == list(range(100, 200))


@on_both_hosts
def test_an_unknown_table_is_named(client):
    for call in (
        lambda: client.fetch("nothing", []),
        lambda: client.fetch("nothing", [1]),
        lambda: client.delete_items("nothing", [1]),
        lambda: list(client.scan("nothing", where=reverb.Where(priority=(1, 2)))),
    ):
        with pytest.raises(TableNotFoundError, match="nothing"):
            call()


@on_both_hosts
def test_nothing_is_deleted_while_a_shard_is_missing(servers, client):
    client = reverb.Client(client.server_address, connect_timeout_s=0.5)
    keys = keys_of(client)
    servers[1].stop()
    with pytest.raises(UnavailableError, match="so nothing was changed at any shard"):
        client.delete_items("t", where=reverb.Where(priority=(1, None)))
    with pytest.raises(UnavailableError):
        client.fetch("t", keys)
    left = [len(list(servers[at].localhost_client().scan("t"))) for at in (0, 2)]
    assert min(left) > 0
