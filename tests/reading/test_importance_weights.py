# SPDX-License-Identifier: Apache-2.0
"""Importance weights of windows, against closed forms; those of items are in `tests/api`."""

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError

LENGTHS = np.array([4, 6, 9, 20, 30])
PRIORITIES = np.array([5.0, 1.0, 2.0, 0.5, 3.0])
# Number of windows of 5 steps of each item.
COUNTS = {
    "none": np.array([0, 2, 5, 16, 26]),
    "left": np.array([1, 3, 6, 17, 27]),
    "right": np.array([3, 5, 8, 19, 29]),
    "both": np.array([4, 6, 9, 20, 30]),
}
PADS = list(COUNTS)


def window_of(pad):
    return reverb.Window(4, before=1, pad=pad)


@pytest.fixture
def sampled(serve):
    """Returns a batch of windows, and the item of each row."""

    def sample(sampler=None, num=500, **options):
        sampler = sampler or reverb.selectors.Prioritized(1.0)
        client = serve(testing.table("t", sampler=sampler, max_size=100, seed=3))
        for item, (length, priority) in enumerate(zip(LENGTHS, PRIORITIES, strict=True)):
            client.insert_sequence([np.full(length, item)], {"t": priority})
        batch = client.sample_batch("t", num, **options)
        return batch, batch.data[0][:, 0]

    return sample


@pytest.mark.parametrize("beta", [0.4, 1.0])
@pytest.mark.parametrize("pad", PADS)
def test_weights_of_windows_are_those_of_the_closed_form(sampled, pad, beta):
    batch, items = sampled(window=window_of(pad))
    counts = COUNTS[pad]
    assert np.array_equal(batch.num_windows, counts[items])
    each = PRIORITIES / counts.clip(1)
    expected = (each[items] / each[items].min()) ** -beta
    weights = reverb.importance_weights(batch, beta, "batch")
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    for it in (batch.info, batch.info._asdict(), {"reverb": batch.info._asdict()}):
        np.testing.assert_array_equal(reverb.importance_weights(it, beta, "batch"), weights)


def test_with_beta_1_all_windows_count_the_same(sampled):
    """The weights are the inverse of how often a window is drawn, up to one factor."""
    batch, items = sampled(window=window_of("none"), num=50_000)
    weights = reverb.importance_weights(batch, 1.0, "batch")
    mass = np.bincount(items, weights, minlength=5)
    counts = COUNTS["none"]
    # The rarest item has 3,800 rows and a third of the windows: a deviation of 0.005.
    np.testing.assert_allclose(mass / mass.sum(), counts / counts.sum(), atol=0.03)


@pytest.mark.parametrize("pad", PADS)
def test_the_weights_of_a_uniform_draw_of_steps_are_1(sampled, pad):
    batch, items = sampled(reverb.selectors.Uniform(over="steps"), window=window_of(pad))
    counts = COUNTS[pad]
    np.testing.assert_allclose(batch.info.probability, counts[items] / counts.sum(), rtol=1e-9)
    weights = reverb.importance_weights(batch, 1.0, "batch")
    np.testing.assert_allclose(weights, np.ones(len(items)), rtol=1e-6)


def test_weights_per_item_leave_the_windows_out(sampled):
    batch, items = sampled(window=window_of("both"))
    share = PRIORITIES / PRIORITIES.sum()
    np.testing.assert_allclose(batch.info.probability, share[items], rtol=1e-9)
    for normalize, each in (
        ("table", share / share.min()),
        ("batch", share / share[items].min()),
        (None, len(share) * share),
    ):
        weights = reverb.importance_weights(batch, 0.7, normalize, per="item")
        np.testing.assert_allclose(weights, each[items] ** -0.7, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"min_probability": 0.01}, {"normalize": None}])
def test_windows_are_normalized_by_their_batch(sampled, options):
    batch, _ = sampled(window=window_of("none"), num=4)
    told = options.get("normalize", "table")
    text = f'normalize must be "batch" for a batch of windows, got {told!r}.*or per="item"'
    with pytest.raises(InvalidArgumentError, match=text):
        reverb.importance_weights(batch, 1.0, **options)


def test_whole_items_have_the_same_weights_per_window(serve):
    client = serve(testing.table("t", sampler=reverb.selectors.Prioritized(1.0), max_size=10))
    client.insert_batch([np.arange(4.0)], {"t": np.array([1.0, 2.0, 3.0, 4.0])})
    batch = client.sample_batch("t", 20)
    expected = reverb.importance_weights(batch, 0.5, per="item")
    np.testing.assert_array_equal(reverb.importance_weights(batch, 0.5), expected)


def test_per_has_two_values():
    info = reverb.SampleInfo.zeros()
    with pytest.raises(InvalidArgumentError, match="got 'step'"):
        reverb.importance_weights(info, 1.0, per="step")
