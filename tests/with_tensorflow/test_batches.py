# SPDX-License-Identifier: Apache-2.0
"""Batches that the sampler makes itself: the same as those that TensorFlow makes."""

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing

FAMILIES = [reverb.TrajectoryDataset, reverb.TimestepDataset]


@pytest.fixture(params=FAMILIES, ids=lambda family: family.__name__)
def family(request):
    return request.param


def one_by_one(dataset):
    """The same dataset as one that is nobody's in particular, whose batches TensorFlow makes."""
    return dataset.map(lambda sample: sample)


def test_a_batch_is_of_the_same_family(serve, ints, family):
    dataset = ints(serve(testing.table()), family=family)
    batches = dataset.batch(3, drop_remainder=True)
    assert type(batches) is family
    assert batches.element_spec == one_by_one(dataset).batch(3, drop_remainder=True).element_spec
    assert dataset.batch(3).element_spec == one_by_one(dataset).batch(3).element_spec
    assert type(dataset.batch(np.int64(3))) is family
    assert type(dataset.batch(tf.constant(3))) is family


@pytest.mark.parametrize(
    "arguments",
    [{"num_parallel_calls": 2}, {"deterministic": False, "num_parallel_calls": 2}, {"name": "x"}],
)
def test_what_asks_for_more_is_left_to_tensorflow(serve, ints, fill, values, family, arguments):
    client = serve(testing.table())
    fill(client, 4)
    batches = ints(client, family=family, max_samples=4).batch(2, **arguments)
    assert type(batches) is not family
    assert sorted(values(batches)) == [0, 0, 0, 0]


def test_a_batch_size_of_a_graph_is_left_to_tensorflow(serve, ints, fill, values):
    client = serve(testing.table(max_times_sampled=1))
    fill(client, 4)

    @tf.function
    def total(size):
        sums = tf.constant(0, tf.int64)
        for sample in ints(client, max_samples=4).batch(size):
            sums += tf.reduce_sum(sample.data[0]) * tf.cast(tf.shape(sample.data[0])[0], tf.int64)
        return sums

    assert int(total(tf.constant(4, tf.int64))) == (0 + 1 + 2 + 3) * 4


def test_items_of_different_shapes_come_one_by_one(serve):
    client = serve(testing.table(max_times_sampled=1))
    lengths = [3, 2, 2, 1, 3, 3]
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append([np.int64(step)])
        for length in lengths:
            writer.create_item("table", 1.0, [writer.history[0][-length:]])
        writer.flush()
    dataset = reverb.TrajectoryDataset(
        client.server_address, "table", [tf.int64], [tf.TensorShape([None])], 100, max_samples=6
    )
    assert [len(sample.data[0]) for sample in dataset] == lengths


def test_a_batch_waits_for_its_last_item(serve, ints, fill, background, values):
    client = serve(testing.table(max_times_sampled=1))
    fill(client, 3)
    iterator = iter(ints(client, max_in_flight_samples_per_worker=8).batch(4, drop_remainder=True))
    call = background(next, iterator)
    fill(client, 5, first=3)
    assert values([call.result(), next(iterator)]) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_batches_fill_behind_a_closed_limiter(serve, ints, fill, values):
    client = serve(testing.table(max_times_sampled=1))
    fill(client, 3)
    dataset = ints(client, rate_limiter_timeout_ms=200).batch(2)
    assert values(dataset) == [0, 1, 2]
    fill(client, 3)
    assert values(ints(client, rate_limiter_timeout_ms=200).batch(2, drop_remainder=True)) == [0, 1]


@pytest.fixture
def steps():
    """Writes items of numbers, and makes a dataset of their steps."""

    def make(client, *items, **options):
        with client.trajectory_writer(16) as writer:
            for item in items:
                for value in item:
                    writer.append([np.int64(value)])
                writer.create_item("table", 1.0, [writer.history[0][-len(item) :]])
                writer.end_episode()
        options = {"max_in_flight_samples_per_worker": 1} | options
        shapes = [tf.TensorShape([])]
        return reverb.TimestepDataset(client.server_address, "table", [tf.int64], shapes, **options)

    return make


def test_the_last_batch_of_steps_comes_as_the_limiter_closes(serve, steps, values):
    client = serve(testing.table(max_times_sampled=1))
    dataset = steps(client, [0, 1, 2], [3, 4], rate_limiter_timeout_ms=100)
    assert [values([batch]) for batch in dataset.batch(4)] == [[0, 1, 2, 3], [4]]
    dataset = steps(client, [0, 1, 2], [3, 4], rate_limiter_timeout_ms=100)
    batches = dataset.batch(4, drop_remainder=True)
    assert [values([batch]) for batch in batches] == [[0, 1, 2, 3]]


def test_a_batch_of_steps_waits_for_its_last_item(serve, steps, background, values):
    client = serve(testing.table(max_times_sampled=1))
    iterator = iter(steps(client, [0, 1, 2]).batch(5))
    call = background(next, iterator)
    steps(client, [3, 4, 5])
    assert values([call.result()]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_batches_of_steps_take_no_more_items_than_they_need(
    start, connect, steps, until, in_flight
):
    table = testing.table(max_times_sampled=1)
    client = connect(start(table))
    dataset = steps(client, *[range(10)] * 12, max_in_flight_samples_per_worker=in_flight)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # It would make the next batch.
    iterator = iter(dataset.batch(25).with_options(options))
    assert len(next(iterator).info.key) == 25
    # Three for the batch, and those in flight.
    until(lambda: table.info.current_size <= 12 - 3 - 1)
    assert table.info.current_size >= 12 - 3 - in_flight


@pytest.mark.parametrize("batch_size", [None, 2])
def test_steps_before_an_item_that_has_none_are_given(serve, values, batch_size):
    client = serve(testing.table(max_times_sampled=1))
    with client.trajectory_writer(2) as writer:
        for value in range(2):
            writer.append([np.int64(value)] * 2)
        left, right = writer.history
        writer.create_item("table", 1.0, [left[-2:], right[-2:]])
        writer.create_item("table", 1.0, [left[-2:], right[-1:]])
        writer.flush()
    dataset = reverb.TimestepDataset(
        client.server_address, "table", [tf.int64] * 2, [tf.TensorShape([])] * 2, 100,
        batch_size=batch_size,
    )  # fmt: skip
    iterator = iter(dataset)
    assert values(next(iterator) for _ in range(1 if batch_size else 2)) == [0, 1]
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="decomposed into timesteps"):
            next(iterator)


def test_steps_of_different_shapes_make_no_batch(serve):
    client = serve(testing.table(max_times_sampled=1))
    for length in (1, 1, 2, 1, 3, 3):
        client.insert([np.zeros(length, np.int64)], {"table": 1.0})
    dataset = reverb.TimestepDataset(
        client.server_address, "table", [tf.int64], [tf.TensorShape([None])], 1, max_samples=6
    )
    iterator = iter(dataset.batch(2))
    assert next(iterator).data[0].shape == (2, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="column 0 is int64") as error:
        next(iterator)
    assert "[2] in one" in str(error.value)
    assert "[1] in another" in str(error.value)
    assert next(iterator).data[0].shape == (2, 3)


def test_a_signature_gives_batches_of_steps(serve):
    client = serve(testing.table(signature=[tf.TensorSpec([3], tf.int64)], max_times_sampled=1))
    for value in range(5):
        client.insert([np.full(3, value)], {"table": 1.0})
    dataset = reverb.TimestepDataset.from_table_signature(
        client.server_address, "table", 1, max_samples=5, batch_size=2, drop_remainder=True
    )
    assert dataset.element_spec.data == (tf.TensorSpec([2, 3], tf.int64),)
    assert [batch.data[0][:, 0].numpy().tolist() for batch in dataset] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("family", [reverb.TrajectoryDataset, reverb.TimestepDataset])
def test_items_of_a_dropped_remainder_are_compared_too(family):
    with testing.server([testing.table(max_times_sampled=1)]) as client:
        client.insert([np.zeros(3, np.int64)], {"table": 1.0})
        dataset = family(
            client.server_address,
            "table",
            dtypes=[tf.int64],
            shapes=[tf.TensorShape([7])],
            max_in_flight_samples_per_worker=4,
            max_samples=1,
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="incompatible tensor"):
            next(iter(dataset.batch(4, drop_remainder=True)))


@pytest.mark.parametrize("batch_size", [None, 1])
def test_steps_before_a_wrong_item_are_given(family, batch_size):
    with testing.server([testing.table(max_times_sampled=1)]) as client:
        for value in (np.int64(1), np.int64(2), np.int32(3)):
            client.insert([value], {"table": 1.0})
        dataset = family(
            client.server_address,
            "table",
            dtypes=[tf.int64],
            shapes=[tf.TensorShape(None)],
            max_in_flight_samples_per_worker=4,
            max_samples=3,
        )
        elements = iter(dataset if batch_size is None else dataset.batch(batch_size))
        assert [int(tf.squeeze(next(elements).data[0])) for _ in range(2)] == [1, 2]
        with pytest.raises(tf.errors.InvalidArgumentError, match="incompatible tensor"):
            next(elements)
