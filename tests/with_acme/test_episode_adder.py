# SPDX-License-Identifier: Apache-2.0
"""Whole episodes as items."""

import numpy as np
import pytest

from reverb.adapters.acme import adders
from reverb.errors import InvalidArgumentError, SignatureMismatchError


def test_an_item_is_an_episode(client, play, episode, values):
    play(adders.EpisodeAdder(client, 10), episode(3), episode(1, 10))
    first, second = values(2)
    assert first == [[0, 1, 2, 3], [0, 1, 2, 0], [1, 2, 3, 0], [1, 1, 0, 0], [True] + 3 * [False]]
    assert second == [[10, 11], [0, 0], [1, 0], [0, 0], [True, False]]


def test_the_longest_episode(client, play, episode, values):
    play(adders.EpisodeAdder(client, 6), episode(5))
    assert values(1)[0][0] == [0, 1, 2, 3, 4, 5]


def test_an_episode_that_is_too_long(client, play, episode, values, error_says):
    adder = adders.EpisodeAdder(client, 3)
    first, steps = episode(3)
    adder.add_first(first)
    for action, timestep, _ in steps[:2]:
        adder.add(action, timestep)
    for _ in range(2):
        error_says(
            lambda: adder.add(*steps[2]),
            InvalidArgumentError,
            "The number of observations within the same episode will exceed max_sequence_length = "
            "3 with the addition of this transition. Call reset() to abandon the episode, or raise "
            "max_sequence_length.",
        )
    adder.reset()
    play(adder, episode(2, 10))
    assert values(1)[0][0] == [10, 11, 12]


def test_padding_fills_up_to_the_longest(client, play, episode, items):
    calls = []

    def fill(shape, dtype):
        calls.append((shape, dtype))
        return np.full(shape, 7, dtype)

    adder = adders.EpisodeAdder(client, 5, padding_fn=fill)
    play(adder, episode(2, extras=lambda i: {"e": np.ones(2, np.int64)}))
    observation, action, reward, discount, start_of_episode, extras = items(1)[0]
    np.testing.assert_array_equal(observation, [0, 1, 2, 7, 7])
    np.testing.assert_array_equal(action, [0, 1, 0, 7, 7])
    np.testing.assert_array_equal(reward, [1, 2, 0, 7, 7])
    np.testing.assert_array_equal(discount, [1, 0, 0, 7, 7])
    np.testing.assert_array_equal(start_of_episode, [True, False, False, False, False])
    np.testing.assert_array_equal(extras, [[1, 1], [1, 1], [0, 0], [7, 7], [7, 7]])
    shapes = [((), column.dtype) for column in (observation, action, reward, discount)]
    assert sorted(map(str, calls)) == sorted(map(str, [*shapes, ((2,), extras.dtype)]))


def test_padding_without_extras(client, play, episode, values):
    play(adders.EpisodeAdder(client, 4, padding_fn=np.zeros), episode(1), episode(3, 10))
    first, second = values(2)
    assert (first[0], second[0]) == ([0, 1, 0, 0], [10, 11, 12, 13])
    assert len(first) == len(second) == 5


def test_padding_of_another_dtype_is_an_error(client, play, episode):
    adder = adders.EpisodeAdder(client, 4, padding_fn=lambda shape, dtype: np.ones(shape))
    with pytest.raises(SignatureMismatchError, match="Got double but expected"):
        play(adder, episode(1))


def test_priority_functions_get_the_padded_episode(client, play, episode):
    lengths = []

    def priority(steps):
        lengths.append(len(steps.observation))
        return 2.5

    adder = adders.EpisodeAdder(
        client, 4, priority_fns={"priority_table": priority}, padding_fn=np.zeros
    )
    play(adder, episode(1))
    (sample,) = client.sample("priority_table", 1, emit_timesteps=False)
    assert (lengths, sample.info.priority) == ([4], 2.5)


def test_episodes_of_a_limited_length_only(client, error_says):
    error_says(
        lambda: adders.EpisodeAdder(client, 1),
        InvalidArgumentError,
        "max_sequence_length must be at least 2, an episode's first observation and its last, got "
        "1",
    )
