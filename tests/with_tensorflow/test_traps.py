# SPDX-License-Identifier: Apache-2.0
"""Known problems of ops that wait, which must not happen here."""

import multiprocessing
import pathlib
import re
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing, tf_ops
from reverb.tf_ops import ops


def test_waiting_calls_leave_other_functions_their_threads(client, background):
    """A few waiting ops take all threads of the pool that functions run in."""
    tf_client = reverb.TFClient(client.server_address)
    count = multiprocessing.cpu_count() + 1

    @tf.function
    def sample():
        return tf_client.sample("table", [tf.int64]).data[0]

    @tf.function
    def work(x):
        return tf.add_n([tf.linalg.matmul(x, x) * float(i) for i in range(8)])

    @tf.function
    def insert():
        priorities = tf.constant([1.0], tf.float64)
        for value in tf.range(count, dtype=tf.int64):
            tf_client.insert([value], tf.constant(["table"]), priorities)

    sample.get_concrete_function()
    x = tf.random.uniform([64, 64])
    work(x)
    calls = [background(sample) for _ in range(count)]
    time.sleep(0.5)
    assert all(call.running for call in calls)
    for _ in range(5):
        work(x)
    insert()
    assert sorted(int(call.result()) for call in calls) == list(range(count))


def test_waiting_iterators_leave_other_pipelines_their_threads(client, ints, background, fill):
    iterators = [iter(ints(client)) for _ in range(8)]
    calls = [background(next, iterator) for iterator in iterators]
    time.sleep(0.3)
    squares = tf.data.Dataset.range(100).map(lambda x: x * x, num_parallel_calls=4)
    assert int(squares.reduce(tf.constant(0, tf.int64), lambda a, b: a + b)) == 328350
    fill(client, 8)
    assert sorted(int(call.result().data[0][0]) for call in calls) == list(range(8))


@pytest.mark.parametrize("threads", [1, 2])
def test_all_available_items_get_through_a_small_pool(client, ints, fill, values, threads):
    """With one thread, a source that waits inside an op keeps later stages from what it gave."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    dataset = ints(client, max_in_flight_samples_per_worker=10).prefetch(4)
    dataset = dataset.map(lambda sample: sample).with_options(options)
    fill(client, 10)
    iterator = iter(dataset)
    assert values(next(iterator) for _ in range(10)) == list(range(10))


def test_a_lost_server_is_no_unavailable_error(start, connect, ints, background, fill, values):
    """TensorFlow turns that class into an internal error; the sampler waits instead."""
    with reverb.Server([testing.table(max_times_sampled=1)]) as server:
        port = server.port
        client = connect(server)
        iterator = iter(ints(client).map(lambda sample: sample))
        call = background(next, iterator)
        time.sleep(0.2)
    time.sleep(0.5)
    assert call.running
    start(testing.table(max_times_sampled=1), port=port)
    fill(client, 1)
    assert values([call.result()]) == [0]


def test_two_samples_in_a_function_are_two_calls(client, fill):
    tf_client = reverb.TFClient(client.server_address)
    fill(client, 2)

    @tf.function
    def both():
        return [tf_client.sample("table", [tf.int64]).data[0] for _ in range(2)]

    assert [int(x) for x in both()] == [0, 1]


def test_a_call_whose_result_is_not_used_is_made(client, fill):
    tf_client = reverb.TFClient(client.server_address)
    fill(client, 3)

    @tf.function
    def second():
        tf_client.sample("table", [tf.int64])
        return tf_client.sample("table", [tf.int64]).data[0]

    assert int(second()) == 1


def test_a_gradient_tape_does_not_mind(client, fill):
    tf_client = reverb.TFClient(client.server_address)
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = x * x
        tf_client.insert([y], tf.constant(["table"]), tf.constant([1.0], tf.float64))
        z = tf_client.sample("table", [tf.float32]).data[0] * x
    assert float(tape.gradient(z, x)) == 9.0


def test_a_compiled_function_can_be_called_beside(client, ints, fill):
    fill(client, 4)

    @tf.function(jit_compile=True)
    def square(x):
        return x * x

    @tf.function
    def total():
        result = tf.constant(0, tf.int64)
        for sample in ints(client, max_samples=4):
            result += square(sample.data[0][0])
        return result

    assert int(total()) == 0 + 1 + 4 + 9


def test_exact_counts_with_batches_of_tensorflow(start, connect, ints, fill, until):
    """TensorFlow reads ahead by itself; programs that count switch that off."""
    table = testing.table(max_times_sampled=1)
    client = connect(start(table))
    fill(client, 20)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    dataset = ints(client).map(lambda sample: sample).batch(4).with_options(options)
    iterator = iter(dataset)
    next(iterator)
    next(iterator)
    until(lambda: table.info.rate_limiter_info.sample_stats.completed >= 8 + 1)
    time.sleep(0.3)
    assert table.info.rate_limiter_info.sample_stats.completed == 8 + 1


def test_memory_of_batches_is_not_shared(client):
    """Buffers are used again, and must not be while somebody looks at them."""
    for value in range(64):
        client.insert([np.full((32, 32), value, np.int64)], {"table": 1.0})
    dataset = reverb.TrajectoryDataset(
        client.server_address, "table", [tf.int64], [tf.TensorShape([1, 32, 32])], 8, max_samples=64
    )
    batches = list(dataset.batch(8))
    views = [memoryview(batch.data[0]) for batch in batches]
    del batches
    for first, view in enumerate(views):
        rows = np.asarray(view).reshape(8, -1)
        assert (rows == np.arange(first * 8, first * 8 + 8)[:, None]).all()


def test_the_package_calls_every_op():
    names = {name for name in dir(ops) if name.startswith("reverb_replay_")}
    sources = "".join(it.read_text() for it in pathlib.Path(tf_ops.__file__).parent.glob("*.py"))
    called = set(re.findall(r"\breverb_replay_\w+", sources))
    assert called == {name for name in names if not name.endswith("_eager_fallback")}


def test_the_library_can_be_asked_for_in_many_threads():
    modules = []
    threads = [
        threading.Thread(target=lambda: modules.append(reverb.tf_client.TFClient)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(modules) == {reverb.TFClient}
