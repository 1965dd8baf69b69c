# SPDX-License-Identifier: Apache-2.0
"""Conversions of tables and samples."""

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.adapters.acme import adders, reverb_utils
from reverb.adapters.acme.types import Transition
from reverb.errors import InvalidArgumentError

SELECTORS = [
    reverb.selectors.Fifo,
    reverb.selectors.Lifo,
    reverb.selectors.Uniform,
    lambda: reverb.selectors.Prioritized(0.7),
    reverb.selectors.MaxHeap,
    reverb.selectors.MinHeap,
]


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_table_like_another(serve_tables, selector):
    client = serve_tables(
        reverb.Table(
            "mine",
            sampler=selector(),
            remover=selector(),
            max_size=17,
            max_times_sampled=3,
            rate_limiter=reverb.rate_limiters.SampleToInsertRatio(2.0, 5, 4.0),
            signature={"x": reverb.specs.TensorSpec((None, 2), np.float32, "x")},
        )
    )
    info = client.server_info()["mine"]
    made = reverb_utils.make_replay_table_from_info(info).info
    for field in (
        "name", "sampler_options", "remover_options", "max_size", "max_times_sampled", "signature"
    ):  # fmt: skip
        assert getattr(made, field) == getattr(info, field)
    for field in ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff"):
        assert getattr(made.rate_limiter_info, field) == getattr(info.rate_limiter_info, field)


def sequences():
    observation = np.arange(12.0).reshape(2, 3, 2)
    numbers = np.arange(6).reshape(2, 3)
    steps = adders.Step({"o": observation}, numbers, numbers, numbers, numbers == 0, (numbers,))
    return reverb.ReplaySample(None, steps)


def test_sequences_as_transitions():
    made = reverb_utils.replay_sample_to_sars_transition(sequences(), is_sequence=True)
    assert type(made) is Transition
    assert made.observation["o"].shape == (2, 3, 2)
    np.testing.assert_array_equal(made.next_observation["o"][:, :, 0], [[2, 4, 0], [8, 10, 6]])
    np.testing.assert_array_equal(made.extras[0], [[0, 1, 2], [3, 4, 5]])


def test_sequences_without_their_last_transition():
    made = reverb_utils.replay_sample_to_sars_transition(
        sequences(), is_sequence=True, strip_last_transition=True
    )
    np.testing.assert_array_equal(made.action, [[0, 1], [3, 4]])
    np.testing.assert_array_equal(made.next_observation["o"][:, :, 0], [[2, 4], [8, 10]])


def test_a_batch_of_sequences_as_one_batch():
    made = reverb_utils.replay_sample_to_sars_transition(
        sequences(), is_sequence=True, strip_last_transition=True, flatten_batch=True
    )
    np.testing.assert_array_equal(made.action, [0, 1, 3, 4])
    assert made.observation["o"].shape == (4, 2)


def test_transitions_stay_what_they_are():
    data = (np.zeros((2, 1)), np.ones(2), np.ones(2), np.ones(2), np.zeros((2, 1)), ())
    made = reverb_utils.replay_sample_to_sars_transition(
        reverb.ReplaySample(None, data), is_sequence=False
    )
    assert type(made) is Transition
    assert made.observation is data[0]


def test_a_sample_of_transitions():
    data = Transition(np.zeros((4, 2)), np.zeros(4), np.zeros(4), np.ones(4), np.zeros((4, 2)))
    sample = reverb_utils.transition_to_replaysample(data)
    assert sample.data is data
    assert [field.shape for field in sample.info] == [(4,)] * 5
    assert sample.info.key.dtype == np.uint64
    np.testing.assert_array_equal(sample.info.probability, [0.25] * 4)


@pytest.mark.parametrize("data", [(), (1.0,)])
def test_transitions_without_a_batch(data):
    with pytest.raises(InvalidArgumentError, match="must have leaves of shape"):
        reverb_utils.transition_to_replaysample(data)


def test_a_table_without_a_signature(serve_tables):
    client = serve_tables(testing.table("mine"))
    made = reverb_utils.make_replay_table_from_info(client.server_info()["mine"])
    assert made.info.signature is None
