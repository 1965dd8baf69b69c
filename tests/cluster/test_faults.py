# SPDX-License-Identifier: Apache-2.0
"""Errors of a client whose address is no valid group."""

import numpy as np
import pytest

import reverb
import reverb.cluster
from reverb import testing
from support.rolling_restart import free_ports


def group_of(*servers, **options):
    places = ",".join(f"127.1:{server.port}" for server in servers)
    return reverb.Client(f"shards:///{places}", connect_timeout_s=5, **options)


def table(**options):
    options = {"sampler": reverb.selectors.Uniform(), "max_size": 10_000} | options
    return testing.table("t", **options)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            lambda: table(sampler=reverb.selectors.Fifo()),
            "sampler of table t is uniform at shard 0",
        ),
        (lambda: testing.table("other"), "has table t, shard 1"),
        (
            lambda: table(signature=np.zeros(3, np.float32)),
            "the signature of table t is none at shard 0",
        ),
    ],
)
def test_tables_that_differ_are_named(start, other, text):
    client = group_of(start(table()), start(other()))
    for call in (client.server_info, lambda: client.sample_batch("t", 1)):
        with pytest.raises(reverb.errors.FailedPreconditionError) as caught:
            call()
        assert text in str(caught.value)


def test_no_shard_can_be_reached():
    ports = free_ports(2)
    address = "shards:///" + ",".join(f"localhost:{port}" for port in ports)
    client = reverb.Client(address, connect_timeout_s=0.5)
    with pytest.raises(reverb.errors.UnavailableError) as caught:
        client.server_info()
    assert "No shard of shards:///" in str(caught.value)
    assert str(ports[0]) in str(caught.value)


def test_a_shard_that_is_not_there_at_first_joins_later(start, until):
    [port] = free_ports(1)
    first = start(table())
    address = f"shards:///127.1:{first.port},127.1:{port}"
    client = reverb.Client(address, connect_timeout_s=20)
    client.insert_batch([np.arange(100)], {"t": 1.0})
    assert client.server_info()["t"].current_size == 100
    assert [shard.state for shard in client.shard_info()] == ["up", "down"]
    start(table(), port=port)
    until(lambda: [shard.state for shard in client.shard_info()] == ["up", "up"])
    client.insert_batch([np.arange(2_048)], {"t": 1.0})
    assert reverb.Client(f"localhost:{port}").server_info()["t"].current_size == 1_024
    assert client.sample_batch("t", 512).info.table_size[0] == 2_148


def test_one_server_is_not_two_shards(start):
    server = start(table())
    client = reverb.Client(f"shards:///127.1:{server.port},localhost:{server.port}")
    with pytest.raises(reverb.errors.FailedPreconditionError, match="are the same server"):
        client.server_info()


def test_shards_with_the_same_index_are_refused(start):
    servers = [start(table(), shard=reverb.cluster.Shard(0, 2, "a")) for _ in range(2)]
    with pytest.raises(
        reverb.errors.FailedPreconditionError, match="both say that they are shard 0"
    ):
        group_of(*servers).server_info()


def test_two_groups_do_not_mix(start):
    first = start(table(), shard=reverb.cluster.Shard(0, 2, "one"))
    other = start(table(), shard=reverb.cluster.Shard(1, 2, "two"))
    with pytest.raises(reverb.errors.FailedPreconditionError, match=r'group "(one|two)"'):
        group_of(first, other).server_info()
    with pytest.raises(reverb.errors.FailedPreconditionError, match="is no shard of a group"):
        group_of(first, start(table())).server_info()


def test_a_group_without_all_its_addresses_is_refused(start):
    first = start(table(), shard=reverb.cluster.Shard(0, 2, "one"))
    with pytest.raises(reverb.errors.FailedPreconditionError, match="no address of shard 1"):
        group_of(first).server_info()


def test_shard_calls_of_one_server_are_explained(start):
    client = reverb.Client(f"localhost:{start(table()).port}")
    for call in (client.shard_info, lambda: client.updates_missed):
        with pytest.raises(reverb.errors.InvalidArgumentError, match="a group of shards"):
            call()
    assert client.directory() is None


def test_a_table_that_the_group_has_not_is_named(start):
    client = group_of(start(table()), start(table()))
    with pytest.raises(reverb.errors.TableNotFoundError, match="t"):
        client.sample_batch("nothing", 1)
    with pytest.raises(reverb.errors.TableNotFoundError):
        client.insert([np.int64(0)], {"nothing": 1.0})
    with pytest.raises(reverb.errors.TableNotFoundError):
        client.reset("nothing")


def test_a_pause_reaches_all_shards_or_none(start):
    servers = [start(table()) for _ in range(3)]
    client = group_of(*servers)
    client.pause_table("t", samples=True)
    assert all(server.status().tables["t"].sampling.paused for server in servers)
    client.resume_table("t")
    assert not any(server.status().tables["t"].sampling.paused for server in servers)
    servers[1].stop()
    with pytest.raises(reverb.errors.UnavailableError, match="shard 1"):
        client.pause_table("t", samples=True)
    left = [servers[0], servers[2]]
    assert not any(server.status().tables["t"].sampling.paused for server in left)


def test_samples_that_are_not_alike_are_refused_and_given(start):
    servers = [start(table()) for _ in range(2)]
    client = group_of(*servers)
    for server, length in zip(servers, (2, 3), strict=True):
        one = reverb.Client(f"localhost:{server.port}")
        one.insert_batch([np.zeros((70, length))], {"t": 1.0})
    with pytest.raises(reverb.errors.InvalidArgumentError, match="shape"):
        client.sample_batch("t", 140)


def test_clients_of_groups_can_be_pickled_and_closed(start):
    import pickle

    servers = [start(table()) for _ in range(2)]
    client = pickle.loads(pickle.dumps(group_of(*servers)))
    client.insert_batch([np.arange(100)], {"t": 1.0})
    sampler = client.sample("t", 50)
    next(sampler)
    del client
    assert len(list(sampler)) == 49
