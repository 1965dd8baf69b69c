# SPDX-License-Identifier: Apache-2.0
"""Importance weights, priorities of sequences, and schedules."""

import pickle

import numpy as np
import pytest

import reverb
from reverb.errors import InvalidArgumentError


def info_of(probability, table_size=10):
    """The info of a batch, or of one sample for a number."""
    probability = np.asarray(probability)
    size = np.full(probability.shape, table_size)
    return reverb.SampleInfo(size, probability, size, probability, size)


class WithMinimum:
    """A batch that knows the smallest probability of the table."""

    def __init__(self, info, min_probability):
        self.info, self.min_probability = info, min_probability


def test_weights_by_the_batch():
    weights = reverb.importance_weights(info_of([0.1, 0.2, 0.4]), 1.0, "batch")
    np.testing.assert_allclose(weights, [1, 0.5, 0.25])
    assert weights.dtype == np.float32


def test_weights_by_the_table():
    info = info_of([0.1, 0.2, 0.4])
    weights = reverb.importance_weights(info, 0.5, min_probability=0.025)
    np.testing.assert_allclose(weights, [0.5, 0.125**0.5, 0.25], rtol=1e-6)
    assert (reverb.importance_weights(WithMinimum(info, 0.025), 0.5) == weights).all()
    by_row = reverb.importance_weights(info, 1.0, min_probability=[0.1, 0.1, 0.05])
    np.testing.assert_allclose(by_row, [1, 0.5, 0.125])


@pytest.mark.parametrize("unknown", [0.0, [0.1, 0.0]])
def test_without_a_minimum_of_the_table_the_batch_has_to_do(unknown):
    weights = reverb.importance_weights(info_of([0.2, 0.4]), 1.0, min_probability=unknown)
    np.testing.assert_allclose(weights, [1, 0.5])


def test_weights_that_are_not_normalized_are_those_of_the_paper():
    weights = reverb.importance_weights(info_of([0.1, 0.2], table_size=20), 0.5, None)
    np.testing.assert_allclose(weights, [2**-0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize("of", [lambda info: info, lambda info: reverb.ReplaySample(info, [])])
def test_an_info_without_the_minimum_of_the_table_is_refused(of):
    info = info_of([0.2, 0.4])
    with pytest.raises(InvalidArgumentError, match=r'field min_probability.*normalize="batch"'):
        reverb.importance_weights(of(info), 1.0)
    np.testing.assert_allclose(reverb.importance_weights(of(info), 1.0, "batch"), [1, 0.5])
    np.testing.assert_allclose(reverb.importance_weights(of(info), 0.0, None), [1, 1])


def test_a_batch_its_info_and_its_fields_have_the_same_weights():
    smallest = np.array([0.1, 0.05])
    info = reverb.BatchInfo(*info_of([0.2, 0.4]), smallest, np.zeros(2, np.int64))
    batch = reverb.ReplayBatch(info, [])
    for it in (info, batch, info._asdict(), {"reverb": info._asdict()}):
        np.testing.assert_allclose(reverb.importance_weights(it, 1.0), [0.5, 0.125])


def test_the_weight_of_one_sample_is_a_scalar():
    weight = reverb.importance_weights(info_of(0.2), 1.0, min_probability=0.1)
    assert weight.shape == ()
    assert weight == np.float32(0.5)


@pytest.mark.parametrize("probability", [[0.5, 0.0], [np.nan]])
def test_items_of_a_scan_have_no_weight(probability):
    with pytest.raises(InvalidArgumentError, match=r"info\.probability must be above 0, got"):
        reverb.importance_weights(info_of(probability), 1.0)


def test_weights_check_their_arguments():
    with pytest.raises(InvalidArgumentError, match='normalize must be "table", "batch" or None'):
        reverb.importance_weights(info_of([0.5]), 1.0, "all")
    with pytest.raises(InvalidArgumentError, match="beta must be finite, got nan"):
        reverb.importance_weights(info_of([0.5]), np.nan)


def test_the_weighted_mean_of_samples_is_that_of_the_table():
    values = np.arange(100.0)
    priorities = np.linspace(0.1, 5.0, 100)
    probabilities = priorities / priorities.sum()
    picks = np.random.default_rng(1).choice(100, 100_000, p=probabilities)
    weights = reverb.importance_weights(info_of(probabilities[picks]), 1.0, "batch")
    mean = np.average(values[picks], weights=weights)
    assert abs(mean - values.mean()) < 0.5


def test_priorities_of_sequences():
    td = np.array([[1.0, -3.0, 2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(reverb.sequence_priority(td), [0.9 * 3 + 0.1 * 2, 0])
    np.testing.assert_allclose(reverb.sequence_priority(td, eta=0.0), [2, 0])
    np.testing.assert_allclose(reverb.sequence_priority(td[0], eta=1.0), 3)


def test_steps_that_do_not_count_change_nothing():
    rng = np.random.default_rng(3)
    td = rng.normal(size=(50, 20))
    mask = rng.random(td.shape) < 0.5
    mask[:, 0] = True
    expected = [reverb.sequence_priority(row[use], 0.7) for row, use in zip(td, mask, strict=True)]
    np.testing.assert_allclose(reverb.sequence_priority(td, 0.7, mask), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"td": 1.0}, r"td must have shape \[B, T\] or \[T\] with at least one step, got \[\]"),
        ({"td": np.zeros((2, 0))}, r"at least one step, got \[2, 0\]"),
        ({"td": [1.0], "eta": 1.5}, "eta must be from 0 to 1, got 1.5"),
        ({"td": [1.0], "mask": [[True]]}, r"mask must have the shape of td, \[1\], got \[1, 1\]"),
        ({"td": [[1.0], [2.0]], "mask": [[True], [False]]}, "mask leaves sequence 1 without"),
    ],
)
def test_priorities_of_sequences_check_their_arguments(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        reverb.sequence_priority(**arguments)


def test_schedules():
    line = reverb.schedules.linear(0.4, 1.0, steps=10)
    assert [line(step) for step in (-1, 0, 5, 10, 11)] == [0.4, 0.4, 0.7, 1.0, 1.0]
    decay = reverb.schedules.exponential(1.0, 0.01, steps=2)
    np.testing.assert_allclose([decay(0), decay(1), decay(2), decay(9)], [1, 0.1, 0.01, 0.01])
    assert reverb.schedules.constant(0.5)(7) == 0.5
    assert pickle.loads(pickle.dumps(decay))(1) == decay(1)


def test_schedules_check_their_arguments():
    with pytest.raises(InvalidArgumentError, match="steps must be at least 1, got 0"):
        reverb.schedules.linear(0.0, 1.0, steps=0)
    with pytest.raises(InvalidArgumentError, match="end must be finite, got inf"):
        reverb.schedules.linear(0.0, float("inf"), steps=5)
    with pytest.raises(InvalidArgumentError, match="start must be above 0, got 0"):
        reverb.schedules.exponential(0.0, 1.0, steps=5)
