# SPDX-License-Identifier: Apache-2.0
"""Tables with what dm-reverb does not have, before clients and servers of dm-reverb."""

import numpy as np
import pytest

import reverb
from reverb.core import protos
from reverb.errors import UnimplementedError

pytestmark = pytest.mark.conformance

# How many items each table has.
ITEMS = 20

# The sampler that dm-reverb uses instead of each new one.
NEAREST = {
    "shuffle": "uniform",
    "recent": "uniform",
    "stratified": "prioritized",
    "systematic": "prioritized",
    "ever": "prioritized",
    "removal": "fifo",
}


def tables():
    """A table of every kind."""
    prioritized = reverb.selectors.Prioritized
    samplers = {
        "shuffle": reverb.selectors.Shuffle(seed=1),
        "recent": reverb.selectors.Recent(3.0),
        "stratified": prioritized(0.5, draw="stratified"),
        "systematic": prioritized(0.5, draw="systematic"),
        "ever": prioritized(1.0),
        "removal": reverb.selectors.Fifo(),
    }
    return [
        reverb.Table(
            name,
            sampler=sampler,
            remover=reverb.selectors.MinHeap() if name == "removal" else reverb.selectors.Fifo(),
            max_size=1000,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            max_priority="ever" if name == "ever" else "present",
        )
        for name, sampler in samplers.items()
    ]


def fill(client):
    """Inserts items of every kind of priority."""
    for name in NEAREST:
        for value in range(ITEMS):
            priority = reverb.MAX_PRIORITY if value % 5 == 4 else 1.0 + value
            removal = {name: float(value)} if value % 3 == 0 else None
            client.insert([np.int64(value)], {name: priority}, removal_priorities=removal)


def kind_of(info):
    """The sampler of a table in dm-reverb."""
    options = bytes.fromhex(info["sampler_options"])
    return protos.KeyDistributionOptions.FromString(options).WhichOneof("distribution")


@pytest.fixture
def peer(worker_of):
    """A process with dm-reverb."""
    return worker_of("peer", "client")


def test_they_sample_from_tables_of_every_kind(peer):
    with reverb.Server(tables()) as server:
        fill(server.localhost_client())
        for name in NEAREST:
            samples = peer.call("peek", address=f"localhost:{server.port}", table=name, count=30)
            assert len(samples) == 30
            assert all(0.0 < sample["info"]["probability"] <= 1.0 for sample in samples)
            assert all(sample["info"]["table_size"] == ITEMS for sample in samples)


def test_they_see_the_nearest_kind_that_they_have(peer):
    with reverb.Server(tables()) as server:
        seen = peer.call("server_info", address=f"localhost:{server.port}")
    assert set(seen) == set(NEAREST)
    for name, kind in NEAREST.items():
        assert kind_of(seen[name]) == kind, name


def test_they_write_to_tables_of_every_kind(peer):
    with reverb.Server(tables()) as server:
        client = server.localhost_client()
        for name in NEAREST:
            address = f"localhost:{server.port}"
            peer.call("insert", address=address, values=[1, 2, 3], priorities={name: 2.0})
            assert [sample.info.priority for sample in client.scan(name)] == [2.0] * 3
            assert client.sample_batch(name, 3).info.table_size.tolist() == [3] * 3


def test_they_load_checkpoints_of_tables_of_every_kind(worker_of, peer, tmp_path):
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
    with reverb.Server(tables(), checkpointer=checkpointer) as server:
        fill(server.localhost_client())
        expected = {
            name: [sample.info.priority for sample in server.localhost_client().scan(name)]
            for name in NEAREST
        }
        server.localhost_client().checkpoint()
    loader = worker_of("peer", "server")
    port = loader.call(
        "start_server",
        tables=[{"name": name} for name in NEAREST],
        checkpoints={"path": str(tmp_path)},
    )
    address = f"localhost:{port}"
    seen = peer.call("server_info", address=address)
    for name, kind in NEAREST.items():
        assert kind_of(seen[name]) == kind, name
        drained = peer.call("drain", address=address, table=name)
        assert sorted(sample["info"]["priority"] for sample in drained) == sorted(expected[name])
    loader.call("stop_server")


def test_their_server_is_not_asked_for_what_it_does_not_know(worker_of):
    loader = worker_of("peer", "server")
    port = loader.call("start_server", tables=[{"name": "t", "sampler": "Prioritized 1.0"}])
    client = reverb.Client(f"localhost:{port}")
    with pytest.raises(UnimplementedError, match="does not know MAX_PRIORITY; start"):
        client.insert([np.int64(1)], {"t": reverb.MAX_PRIORITY})
    with pytest.raises(UnimplementedError, match="does not know removal priorities; start"):
        client.insert([np.int64(1)], {"t": 1.0}, removal_priorities={"t": 3.0})
    client.insert([np.int64(1)], {"t": 1.0})
    client.insert([np.int64(2)], {"t": 4.0})
    batch = client.sample_batch("t", 200)
    assert set(batch.info.priority.tolist()) == {1.0, 4.0}
    weights = reverb.importance_weights(batch, beta=1.0)
    np.testing.assert_allclose(sorted(set(weights.tolist())), [0.25, 1.0])
    loader.call("stop_server")
