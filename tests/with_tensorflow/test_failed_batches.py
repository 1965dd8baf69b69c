# SPDX-License-Identifier: Apache-2.0
"""Batches of items that cannot be stacked: what stays in the table, and what a dataset gives."""

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing
from support.hosts import HOSTS


@pytest.fixture
def client(path):
    with reverb.Server([reverb.Table.queue("queue", 100)]) as server:
        yield reverb.Client(f"{HOSTS[path]}:{server.port}")


def write(client, lengths):
    with client.trajectory_writer(10) as writer:
        for value, length in enumerate(lengths):
            for _ in range(length):
                writer.append([np.int64(value)])
            writer.create_item("queue", 1.0, [writer.history[0][-length:]])


def dataset(client, in_flight, **options):
    return reverb.TrajectoryDataset(
        client.server_address,
        "queue",
        dtypes=[tf.int64],
        shapes=[tf.TensorShape([None])],
        max_in_flight_samples_per_worker=in_flight,
        rate_limiter_timeout_ms=300,
        **options,
    )


def left(client):
    return [int(item.data[0][0]) for item in client.scan("queue")]


@pytest.mark.parametrize("in_flight", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_batch_that_cannot_be_stacked_stays(client, in_flight, prefetch):
    write(client, [2, 2, 3, 3, 1, 4, 2, 2])
    batches = dataset(client, in_flight).batch(2)
    batches = iter(batches.prefetch(prefetch) if prefetch else batches)
    assert next(batches).data[0][:, 0].numpy().tolist() == [0, 1]
    assert next(batches).data[0][:, 0].numpy().tolist() == [2, 3]
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have the same shapes"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    assert left(client) == [4, 5, 6, 7]


def test_errors_that_are_ignored_end_the_dataset(client):
    write(client, [1, 1, 3, 4, 6, 6])
    batches = dataset(client, 4).batch(2).ignore_errors()
    assert [batch.data[0][0, 0].numpy() for batch in batches] == [0]
    assert left(client) == [2, 3, 4, 5]


@pytest.mark.parametrize("workers", [1, 2])
def test_items_that_a_table_keeps_are_dropped_as_in_tf_data(workers):
    table = testing.table("queue", sampler=reverb.selectors.Uniform(), max_size=100)
    with reverb.Server([table]) as server:
        client = reverb.Client(f"localhost:{server.port}")
        write(client, [1, 2, 3, 4])
        batches = iter(dataset(client, 8, num_workers_per_iterator=workers).batch(20))
        for _ in range(3):
            with pytest.raises(tf.errors.InvalidArgumentError, match="must have the same shapes"):
                next(batches)


def test_the_last_batch_may_be_smaller(client):
    write(client, [2, 2, 3])
    batches = [batch.data[0].shape.as_list() for batch in dataset(client, 8, batch_size=2)]
    assert batches == [[2, 2], [1, 3]]
