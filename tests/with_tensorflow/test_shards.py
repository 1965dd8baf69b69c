# SPDX-License-Identifier: Apache-2.0
"""Datasets and ops over a group of shards, with nothing but its address."""

import math

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing

SIZES = (50, 100, 150, 500)


@pytest.fixture
def group(start):
    """Four servers with 1 : 2 : 3 : 10 items of priorities that differ; address and weights."""
    weights = {}
    places = []
    rng = np.random.default_rng(0)
    for shard, size in enumerate(SIZES):
        table = testing.table(
            "t",
            sampler=reverb.selectors.Prioritized(0.6),
            max_size=10_000,
            signature={"x": tf.TensorSpec([1], tf.int64)},
        )
        server = start(table)
        places.append(f"127.1:{server.port}")
        priorities = rng.uniform(0.5, 2.0, size) * (1 + shard)
        values = np.arange(size) + 1_000 * shard
        reverb.Client(places[-1]).insert_batch({"x": values}, {"t": priorities})
        weights.update(zip(values.tolist(), (priorities**0.6).tolist(), strict=True))
    return "shards:///" + ",".join(places), weights


def z_of(values, weights):
    draws, total = len(values), sum(weights.values())
    counts = dict.fromkeys(weights, 0)
    for value in values:
        counts[value] += 1
    chi = sum(
        (counts[value] - draws * weight / total) ** 2 / (draws * weight / total)
        for value, weight in weights.items()
    )
    degrees = len(weights) - 1
    return ((chi / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))


@pytest.mark.parametrize("batch_size", [None, 64])
def test_a_dataset_draws_by_the_weights_of_all_shards(group, batch_size):
    address, weights = group
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, "t", max_in_flight_samples_per_worker=128
    )
    if batch_size:
        dataset = dataset.batch(batch_size)
    # Single elements take a fifth of a millisecond each, and a busy machine five times that.
    count = 40_000 // batch_size if batch_size else 10_000
    values, probabilities = [], []
    for sample in dataset.take(count).as_numpy_iterator():
        values.extend(np.atleast_1d(sample.data["x"].reshape(-1)).tolist())
        probabilities.extend(np.atleast_1d(sample.info.probability).tolist())
    total = sum(weights.values())
    exact = [weights[value] / total for value in values]
    np.testing.assert_allclose(probabilities, exact, rtol=1e-9)
    assert z_of(values, weights) < 4


def test_ops_reach_every_shard(group):
    address, _ = group
    client = reverb.TFClient(address)
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, "t", max_in_flight_samples_per_worker=10
    )
    keys = [int(sample.info.key) for sample in dataset.take(200).as_numpy_iterator()]
    client.update_priorities(
        "t", tf.constant(keys, tf.uint64), tf.fill([len(keys)], tf.constant(7.0, tf.float64))
    )
    new = {s.info.key: s.info.priority for s in reverb.Client(address).scan("t")}
    assert all(new[key] == 7.0 for key in keys)
    client.insert([tf.constant(5, tf.int64)], tf.constant(["t"]), tf.constant([1.0], tf.float64))
    assert reverb.Client(address).server_info()["t"].current_size == sum(SIZES) + 1
