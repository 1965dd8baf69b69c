# SPDX-License-Identifier: Apache-2.0
"""New iterators: programs that make one for each training step need cheap ones."""

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing

# Functions with this attribute are instantiated without TensorFlow's optimizer, placer and
# partitioner, in a tenth of the time.
CHEAP = "experimental_ints_on_device"

PIPELINES = {
    "plain": lambda dataset: dataset,
    "batch": lambda dataset: dataset.batch(4),
    "take": lambda dataset: dataset.take(1),
    "batch and take": lambda dataset: dataset.batch(4).take(1),
}


def graph_of(variant):
    """The graph that TensorFlow instantiates for an iterator over a dataset."""
    ignore_state = 1
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=ignore_state)
    return tf.compat.v1.GraphDef.FromString(graph.numpy())


def is_cheap(function):
    return function.attr[CHEAP].b or tf.__version__.startswith("2.12.")


@pytest.mark.parametrize("family", [reverb.TrajectoryDataset, reverb.TimestepDataset])
@pytest.mark.parametrize("name", PIPELINES)
def test_an_iterator_instantiates_one_function_or_two(serve, ints, fill, monkeypatch, name, family):
    client = serve(testing.table())
    fill(client, 1)
    dataset = PIPELINES[name](ints(client, family=family))
    variants = []
    from_variant = tf.data.experimental.from_variant

    def recorded(variant, structure):
        variants.append(variant)
        return from_variant(variant, structure)

    next(iter(dataset))  # Traces what later iterators use.
    monkeypatch.setattr(tf.data.experimental, "from_variant", recorded)
    iterator = iter(dataset)
    graph = graph_of(variants[-1])
    del iterator
    functions = graph.library.function
    assert len(functions) == (2 if "batch" in name else 1)
    assert all(map(is_cheap, functions))


def test_derived_datasets_have_functions_of_any_device(serve, ints):
    """The optimizer of a graph with `interleave` refuses functions on one device."""
    dataset = ints(serve(testing.table()))
    graph = graph_of(tf.data.experimental.to_variant(dataset.prefetch(1)))
    assert graph.library.function
    assert not any(function.attr[CHEAP].b for function in graph.library.function)


def test_take_starts_to_sample_with_its_iterator(start, connect, ints, fill, until):
    table = testing.table()
    client = connect(start(table))
    fill(client, 5)
    iterator = iter(ints(client, max_in_flight_samples_per_worker=4).take(2))
    until(lambda: table.info.rate_limiter_info.sample_stats.completed == 4)
    del iterator


@pytest.mark.parametrize("count", [0, 1, 3, np.int64(3), -1, 99, tf.constant(3, tf.int64)])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_take_is_that_of_tensorflow(client, ints, fill, values, count, batch_size):
    fill(client, 8)
    dataset = ints(client, batch_size=batch_size, max_samples=8)
    total = 8 // (batch_size or 1)
    expected = total if int(count) < 0 else min(int(count), total)
    taken = dataset.take(count)
    assert taken.element_spec == dataset.element_spec
    assert values(taken) == list(range(expected * (batch_size or 1)))


def test_take_inside_a_function(client, ints, fill):
    fill(client, 4)

    @tf.function
    def total(count):
        result = tf.constant(0, tf.int64)
        for sample in ints(client).take(count):
            result += sample.data[0][0]
        return result

    assert int(total(tf.constant(3, tf.int64))) == 0 + 1 + 2


def test_batches_are_made_ahead_only_if_there_is_a_next(start, connect, ints, fill, until):
    table = testing.table(max_times_sampled=1)
    client = connect(start(table))
    fill(client, 12)
    iterator = iter(ints(client, batch_size=2).take(1))
    next(iterator)
    until(lambda: table.info.current_size <= 12 - 2)
    assert table.info.current_size >= 12 - 2 - 1
    ahead = iter(ints(client, batch_size=2).take(2))
    next(ahead)
    until(lambda: table.info.current_size <= 12 - 3 - 4)
