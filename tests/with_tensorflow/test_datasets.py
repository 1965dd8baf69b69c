# SPDX-License-Identifier: Apache-2.0
"""Elements of `next`: their order, their number, and the end."""

import contextlib
import time

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing
from support.waiting import DEADLINE_S


def total(dataset):
    """The sum of a dataset of ints."""
    result = tf.constant(0, tf.int64)
    for sample in dataset:
        result += sample.data[0][0]
    return result


def test_an_element_is_an_item_and_how_it_was_picked(client):
    client.insert([np.int64(7)], {"table": 3.0})
    client.insert({"a": np.float32(1.5), "b": np.arange(3)}, {"table": 0.5})
    dtypes = {"b": tf.int64, "a": [tf.float32]}
    shapes = {"b": tf.TensorShape([1, 3]), "a": [tf.TensorShape([None])]}
    client.sample_batch("table", 1)
    dataset = reverb.TrajectoryDataset(client.server_address, "table", dtypes, shapes, 1)
    info, data = next(iter(dataset))
    assert isinstance(info, reverb.SampleInfo)
    assert info.key.dtype == tf.uint64
    assert [float(field) for field in info[1:]] == [1.0, 1.0, 0.5, 1.0]
    assert data["a"][0].numpy().tolist() == [1.5]
    assert data["b"].numpy().tolist() == [[0, 1, 2]]


def test_a_column_of_one_step_has_no_time(client):
    with client.trajectory_writer(2) as writer:
        for step in range(2):
            writer.append({"x": np.full(3, step), "y": np.float32(step)})
        x, y = writer.history["x"][-2:], writer.history["y"][-1]
        writer.create_item("table", 1.0, {"x": x, "y": y})
        writer.flush()
    dataset = reverb.TrajectoryDataset(
        client.server_address,
        "table",
        {"x": tf.int64, "y": tf.float32},
        {"x": tf.TensorShape([2, 3]), "y": tf.TensorShape([])},
        1,
    )
    data = next(iter(dataset)).data
    assert data["x"].numpy().tolist() == [[0, 0, 0], [1, 1, 1]]
    assert data["y"].numpy() == 1.0


@pytest.mark.parametrize("workers", [1, 3])
def test_every_item_comes_as_often_as_its_table_allows(start, connect, ints, fill, values, workers):
    table = testing.table(max_times_sampled=10)
    client = connect(start(table))
    fill(client, 3)
    dataset = ints(client, max_samples=30, num_workers_per_iterator=workers)
    assert sorted(values(dataset.batch(3))) == [0] * 10 + [1] * 10 + [2] * 10
    assert not table.can_sample(3)
    assert table.info.current_size == 0


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("max_samples", [1, 5, 64, 65])
def test_max_samples_is_exact(start, connect, ints, fill, workers, max_samples):
    table = testing.table()
    client = connect(start(table))
    fill(client, 3)
    dataset = ints(
        client,
        max_in_flight_samples_per_worker=3,
        num_workers_per_iterator=workers,
        max_samples=max_samples,
    )
    assert len(list(dataset)) == max_samples
    assert table.info.rate_limiter_info.sample_stats.completed == max_samples


def test_streams_are_made_anew(client, ints, fill, values):
    fill(client, 20)
    dataset = ints(client, max_samples=20, max_samples_per_stream=3)
    assert values(dataset) == list(range(20))


@pytest.mark.parametrize("timeout_ms", [0, 300])
def test_a_timeout_ends_the_dataset(client, ints, fill, values, timeout_ms):
    dataset = ints(client, rate_limiter_timeout_ms=timeout_ms)
    started = time.monotonic()
    assert values(dataset) == []
    assert timeout_ms / 1000 <= time.monotonic() - started < DEADLINE_S
    fill(client, 5)
    assert values(dataset) == [0, 1, 2, 3, 4]


def test_a_timeout_ends_a_prefetching_dataset(client, ints, fill, values):
    fill(client, 5)
    dataset = ints(client, rate_limiter_timeout_ms=100, max_in_flight_samples_per_worker=10)
    assert values(dataset.prefetch(2)) == [0, 1, 2, 3, 4]


def test_an_iterator_starts_to_sample_at_once(start, connect, ints, fill, until):
    table = testing.table()
    client = connect(start(table))
    fill(client, 5)
    iterator = iter(ints(client, max_in_flight_samples_per_worker=4))
    until(lambda: table.info.rate_limiter_info.sample_stats.completed == 4)
    del iterator


def test_each_iterator_has_a_sampler_of_its_own(client, ints, fill, values):
    fill(client, 6)
    dataset = ints(client)
    first, second = iter(dataset), iter(dataset)
    found = values(next(iterator) for _ in range(2) for iterator in (first, second))
    assert len(set(found)) == 4


def test_addresses_and_tables_may_be_tensors(client, ints, fill, values):
    fill(client, 2)
    dataset = reverb.TrajectoryDataset(
        tf.constant(client.server_address),
        tf.constant("table"),
        [tf.int64],
        [tf.TensorShape([1])],
        1,
        max_samples=1,
    )
    assert values(dataset) == [0]
    assert values(dataset.batch(1)) == [1]


def test_as_argument_of_a_function(client, ints, fill):
    fill(client, 8)
    dataset = ints(client, max_samples=4)
    assert int(tf.function(total)(dataset)) == 0 + 1 + 2 + 3
    iterator = iter(dataset)
    function = tf.function(lambda iterator: next(iterator).data[0][0])
    assert [int(function(iterator)) for _ in range(4)] == [4, 5, 6, 7]


# TensorFlow says by this warning that functions of a pipeline remain graphs.
@pytest.mark.filterwarnings("ignore:Even though the:UserWarning")
def test_without_a_function_around_functions(client, ints, fill):
    fill(client, 3)
    tf.config.run_functions_eagerly(True)
    try:
        assert int(tf.function(total)(ints(client, max_samples=3))) == 0 + 1 + 2
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_in_a_session_with_an_iterator_that_is_initialised(client, ints, fill, values, batch_size):
    fill(client, 4)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = ints(client, max_samples=2, batch_size=batch_size)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        element = iterator.get_next()
        found = []
        for _ in range(2):
            session.run(iterator.initializer)
            with contextlib.suppress(tf.errors.OutOfRangeError):
                while True:
                    found.append(session.run(element))
    assert values(found) == [0, 1, 2, 3]


def test_in_a_session_with_a_placeholder_for_the_address(client, ints, fill, values):
    fill(client, 1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        address = tf.compat.v1.placeholder(tf.string, [])
        dataset = reverb.TrajectoryDataset(address, "table", [tf.int64], [tf.TensorShape([1])], 1)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        session.run(iterator.initializer, {address: client.server_address})
        assert values([session.run(iterator.get_next())]) == [0]


def test_the_state_of_an_iterator_cannot_be_saved(client, ints, fill, tmp_path):
    fill(client, 2)
    iterator = iter(ints(client))
    next(iterator)
    with pytest.raises((tf.errors.UnimplementedError, tf.errors.FailedPreconditionError)):
        tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))
