# SPDX-License-Identifier: Apache-2.0
"""Options of the address of a group."""

import numpy as np
import pytest

import reverb
from reverb import testing


@pytest.fixture
def shards(start):
    """A shard on this machine, and one that its address does not show to be; and the address."""

    def table():
        return testing.table("t", sampler=reverb.selectors.Uniform(), max_size=10_000)

    near, far = start(table()), start(table())
    clients = [reverb.Client(f"localhost:{server.port}") for server in (near, far)]
    return clients, f"shards:///localhost:{near.port},127.1:{far.port}"


def sizes(clients):
    return [client.server_info()["t"].current_size for client in clients]


def test_a_local_learner_has_the_probabilities_of_the_group(shards):
    clients, address = shards
    for number, client in enumerate(clients):
        client.insert_batch([np.full(100, number)], {"t": 1.0})
    batch = reverb.Client(f"{address}?sample_from=local").sample_batch("t", 256)
    assert (np.asarray(batch.data[0]) == 0).all()
    # As one of two learners that sample from their own shards.
    np.testing.assert_allclose(batch.info.probability, 1 / 200)
    assert set(batch.info.table_size.tolist()) <= {100, 200}
    everywhere = reverb.Client(address).sample_batch("t", 256)
    assert set(np.asarray(everywhere.data[0]).ravel().tolist()) == {0, 1}


def test_local_writers_write_near(shards):
    clients, address = shards
    client = reverb.Client(f"{address}?writers=local")
    for _ in range(6):
        client.insert([np.int64(0)], {"t": 1.0})
    assert sizes(clients) == [6, 0]


def test_least_loaded_writers_spread(shards):
    clients, address = shards
    client = reverb.Client(f"{address}?writers=least_loaded")
    writers = [client.trajectory_writer(1) for _ in range(24)]
    for writer in writers:
        writer.append([np.int64(0)])
        writer.create_item("t", 1.0, [writer.history[0][-1:]])
        writer.flush()
    for writer in writers:
        writer.close()
    assert sum(sizes(clients)) == 24
    # The better of two random shards: far from 24 and 0.
    assert min(sizes(clients)) >= 6


def test_a_writer_goes_on_at_another_shard_after_its_patience(shards, start):
    clients, address = shards
    server = start(testing.table("t", sampler=reverb.selectors.Uniform(), max_size=10_000))
    client = reverb.Client(
        f"{address},127.1:{server.port}?failover_after_s=0.3", connect_timeout_s=20
    )
    writers = [client.trajectory_writer(1) for _ in range(3)]
    values = iter(range(1_000))

    def write():
        for writer in writers:
            for _ in range(5):
                writer.append([np.int64(next(values))])
                writer.create_item("t", 1.0, [writer.history[0][-1:]])
            writer.flush(timeout_ms=20_000)

    write()
    assert [*sizes(clients), server.server_info()["t"].current_size] == [5, 5, 5]
    server.stop()
    write()
    assert sum(sizes(clients)) == 25
    for writer in writers:
        writer.close()
