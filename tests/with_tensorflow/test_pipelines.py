# SPDX-License-Identifier: Apache-2.0
"""Datasets inside larger pipelines, strategies, saved models and the service of `tf.data`."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing

STEPS = {
    "prefetch": lambda dataset: dataset.prefetch(3),
    "take": lambda dataset: dataset.take(12),
    "shuffle": lambda dataset: dataset.shuffle(5),
    "cache": lambda dataset: dataset.cache(),
    "map": lambda dataset: dataset.map(lambda sample: sample, num_parallel_calls=2),
    "filter": lambda dataset: dataset.filter(lambda sample: sample.data[0][0] >= 0),
    "batch and unbatch": lambda dataset: dataset.batch(5).unbatch(),
    "window": lambda dataset: (
        dataset.map(lambda sample: sample.data[0])
        .window(4)
        .flat_map(lambda window: window.map(lambda x: reverb.ReplaySample((), (x,))))
    ),
    "zip": lambda dataset: tf.data.Dataset.zip((tf.data.Dataset.range(12), dataset)).map(
        lambda _, sample: sample
    ),
    "not deterministic": lambda dataset: dataset.with_options(_not_deterministic()),
    "sample_from_datasets": lambda dataset: tf.data.Dataset.sample_from_datasets([dataset]),
}


def _not_deterministic():
    options = tf.data.Options()
    options.deterministic = False
    return options


@pytest.mark.parametrize("name", STEPS)
def test_every_item_comes_through(client, ints, fill, values, name):
    fill(client, 12)
    dataset = ints(client, max_samples=12, max_in_flight_samples_per_worker=5)
    assert sorted(values(STEPS[name](dataset))) == list(range(12))


def test_repeat_samples_anew(client, ints, fill, values):
    fill(client, 12)
    assert values(ints(client, max_samples=3).repeat(4)) == list(range(12))


def test_one_source_of_many_has_data(start, connect, ints, fill, values):
    tables = [testing.table(str(i), max_times_sampled=1) for i in range(32)]
    client = connect(start(*tables))
    fill(client, 40, table="17")

    def source(i):
        return reverb.TrajectoryDataset(
            client.server_address, tf.strings.as_string(i), [tf.int64], [tf.TensorShape([1])], 3
        )

    dataset = tf.data.Dataset.range(32).interleave(
        source, cycle_length=32, num_parallel_calls=32, deterministic=False
    )
    iterator = iter(dataset)
    assert values(next(iterator) for _ in range(40)) == list(range(40))


def test_many_sources_of_one_table(client, ints, fill, values):
    fill(client, 60)
    dataset = tf.data.Dataset.range(4).interleave(
        lambda _: ints(client, max_in_flight_samples_per_worker=3),
        cycle_length=4,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    iterator = iter(dataset)
    found = values(next(iterator) for _ in range(30))
    assert len(set(found)) == 30
    assert set(found) <= set(range(60))


@pytest.mark.parametrize("drop_remainder", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_a_strategy_splits_batches_among_replicas(client, ints, fill, drop_remainder, fused):
    fill(client, 24)
    dataset = ints(client, max_samples=24)
    dataset = dataset if fused else dataset.map(lambda sample: sample)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = []
    for batch in strategy.experimental_distribute_dataset(dataset.batch(4, drop_remainder)):
        parts = strategy.experimental_local_results(batch.data[0])
        assert [len(part) for part in parts] == [2, 2]
        found.extend(int(x) for part in parts for x in np.ravel(part))
    assert sorted(found) == list(range(24))


def test_a_strategy_with_a_dataset_for_each_worker(client, ints, fill):
    fill(client, 24)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = strategy.distribute_datasets_from_function(
        lambda context: ints(client, max_samples=24).batch(4)
    )

    @tf.function
    def step(iterator):
        def replica(sample):
            return tf.reduce_sum(sample.data[0])

        parts = strategy.run(replica, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)

    iterator = iter(dataset)
    assert sum(int(step(iterator)) for _ in range(3)) == sum(range(24))


def test_sharding_leaves_the_dataset_alone(client, ints):
    options = ints(client).options()
    policy = tf.data.experimental.AutoShardPolicy.OFF
    assert options.experimental_distribute.auto_shard_policy == policy
    untouched = tf.data.Options()
    untouched.experimental_distribute.auto_shard_policy = policy
    assert options == untouched


LOADER = """
import sys
import tensorflow as tf
import reverb.tf_ops
print(int(tf.saved_model.load(sys.argv[1]).total()))
"""


def test_a_saved_model_samples(client, ints, fill, tmp_path):
    fill(client, 12)
    module = tf.Module()

    @tf.function(input_signature=[])
    def sum_of_four():
        result = tf.constant(0, tf.int64)
        for batch in ints(client, max_samples=4).batch(2):
            result += tf.reduce_sum(batch.data[0])
        return result

    module.total = sum_of_four
    assert int(module.total()) == 0 + 1 + 2 + 3
    tf.saved_model.save(module, str(tmp_path))
    assert int(tf.saved_model.load(str(tmp_path)).total()) == 4 + 5 + 6 + 7
    command = [sys.executable, "-c", LOADER, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == str(8 + 9 + 10 + 11), result.stderr


@pytest.mark.parametrize("mode", ["parallel_epochs", "distributed_epoch"])
def test_the_data_service_samples(client, ints, fill, values, mode):
    service = tf.data.experimental.service
    fill(client, 20)
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    dataset = ints(client, max_samples=20, rate_limiter_timeout_ms=2000).with_options(options)
    dataset = dataset.apply(service.distribute(processing_mode=mode, service=dispatcher.target))
    assert sorted(values(dataset)) == list(range(20))
    del worker, dispatcher


def test_datasets_are_saved_to_files(client, ints, fill, values, tmp_path):
    fill(client, 5)
    ints(client, max_samples=5).save(str(tmp_path / "items"))
    loaded = tf.data.Dataset.load(str(tmp_path / "items"))
    assert [int(sample.data[0][0]) for sample in loaded] == [0, 1, 2, 3, 4]


def test_keras_learns_from_it(client):
    for value in range(40):
        x = np.float32([value / 40, 1.0])
        client.insert([x, x.sum(keepdims=True)], {"table": 1.0})
    dataset = reverb.TrajectoryDataset(
        client.server_address,
        "table",
        (tf.float32, tf.float32),
        (tf.TensorShape([1, 2]), tf.TensorShape([1, 1])),
        10,
        max_samples=40,
    )
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    pairs = dataset.map(lambda sample: (sample.data[0][0], sample.data[1][0])).batch(10)
    history = model.fit(pairs, epochs=1, steps_per_epoch=3, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"][0])
