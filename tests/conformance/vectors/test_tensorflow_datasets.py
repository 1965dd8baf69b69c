# SPDX-License-Identifier: Apache-2.0
"""Conformance vectors that need TensorFlow datasets: 19, 21, 27 and 28."""

import contextlib
import time

import numpy as np
import pytest

import reverb
from support.waiting import PATIENCE

tf = pytest.importorskip("tensorflow", reason="datasets need TensorFlow, which is not installed")

if not hasattr(reverb, "TrajectoryDataset"):
    pytest.skip("this package has no TensorFlow datasets yet", allow_module_level=True)


@contextlib.contextmanager
def serve(table, port=None):
    """Runs a server with one table and yields a client of it."""
    server = reverb.Server([table], port=port)
    try:
        yield reverb.Client(f"localhost:{server.port}")
    finally:
        server.stop()


def dataset(client, **arguments):
    """Returns a dataset over scalar int64 items."""
    settings = {"max_in_flight_samples_per_worker": 1, **arguments}
    return reverb.TrajectoryDataset(
        client.server_address, "table", dtypes=[tf.int64], shapes=[tf.TensorShape([1])], **settings
    )


def patterns_of(configs):
    """Runs the pattern dataset over steps 0 to 7 of two episodes of four steps."""
    steps = tf.data.Dataset.range(8)
    found = reverb.PatternDataset(
        input_dataset=steps,
        configs=configs,
        respect_episode_boundaries=True,
        is_end_of_episode=lambda step: tf.equal(step % 4, 3),
    )
    return [element.numpy().tolist() for element in found]


def pattern(transform, conditions=()):
    """Returns a configuration of one pattern over scalar steps."""
    reference = reverb.structured.create_reference_step(tf.TensorSpec([], tf.int64))
    return reverb.structured.create_config(transform(reference), "table", conditions)


def test_vector_19_a_short_pattern_waits_for_longer_ones():
    configs = [pattern(lambda x: x[-3:]), pattern(lambda x: x[-1:])]
    expected = [[0, 1, 2], [2], [1, 2, 3], [3], [4, 5, 6], [6], [5, 6, 7], [7]]
    assert patterns_of(configs) == expected


def test_vector_19_short_pattern_first_does_not_wait():
    configs = [pattern(lambda x: x[-1:]), pattern(lambda x: x[-3:])]
    expected = [[0], [1], [2], [0, 1, 2], [3], [1, 2, 3]]
    assert patterns_of(configs) == [*expected, *([i + 4 for i in item] for item in expected)]


def test_vector_19_end_of_episode():
    condition = reverb.structured.Condition.is_end_episode()
    assert patterns_of([pattern(lambda x: x[-1:], [condition])]) == [[3], [7]]


def test_vector_19_stride():
    assert patterns_of([pattern(lambda x: x[-4::2])]) == [[0, 2], [4, 6]]


@pytest.mark.parametrize(
    ("in_flight", "workers", "at_start", "after_one", "after_in_flight_plus_one"),
    [(1, 1, 1, 2, 3), (1, 3, 3, 4, 5), (4, 1, 4, 4, 8), (4, 3, 12, 12, 16), (10, 1, 10, 10, 20)],
)
def test_vector_21_prefetch(in_flight, workers, at_start, after_one, after_in_flight_plus_one):
    table = reverb.Table.queue("table", 100)
    with serve(table) as client:
        for value in range(50):
            client.insert([np.asarray(value)], {"table": 1.0})
        iterator = iter(
            dataset(
                client,
                max_in_flight_samples_per_worker=in_flight,
                num_workers_per_iterator=workers,
            )
        )
        _wait_until_fetched(table, at_start)
        next(iterator)
        _wait_until_fetched(table, after_one)
        for _ in range(in_flight):
            next(iterator)
        _wait_until_fetched(table, after_in_flight_plus_one)


def test_vector_28_a_finite_timeout_ends_the_dataset():
    with serve(reverb.Table.queue("table", 1)) as client:
        started = time.monotonic()
        assert list(dataset(client, rate_limiter_timeout_ms=500)) == []
        assert 0.45 < time.monotonic() - started < 5.0 * PATIENCE


def _wait_until_fetched(table, count):
    """Waits until exactly `count` samples were fetched; more than that is a failure at once."""
    deadline = time.monotonic() + 10.0
    while (completed := table.info.rate_limiter_info.sample_stats.completed) < count:
        assert time.monotonic() < deadline, f"{completed} samples fetched instead of {count}"
        time.sleep(0.005)
    assert completed == count
