# SPDX-License-Identifier: Apache-2.0
"""Sequences of one length, and what becomes of the ends of episodes."""

import numpy as np
import pytest
import tree
from dm_env import specs

import reverb
from reverb.adapters.acme import adders
from reverb.adapters.acme.specs import EnvironmentSpec
from reverb.errors import InvalidArgumentError

END = adders.EndBehavior

# Observations of the items of two episodes, 0 to 5 and 10 to 13, with length 3 and period 2.
OBSERVATIONS = {
    END.WRITE: [[0, 1, 2], [2, 3, 4], [3, 4, 5], [10, 11, 12], [11, 12, 13]],
    END.CONTINUE: [[0, 1, 2], [2, 3, 4], [4, 5, 10], [10, 11, 12]],
    END.ZERO_PAD: [[0, 1, 2], [2, 3, 4], [4, 5, 0], [10, 11, 12], [12, 13, 0]],
    END.TRUNCATE: [[0, 1, 2], [2, 3, 4], [4, 5], [10, 11, 12], [12, 13]],
}


@pytest.fixture
def observations(client, play, values):
    """The observations of the items that `adder` makes of episodes."""

    def observations(adder, *episodes, count):
        play(adder, *episodes)
        adder.close()
        return [item[0] for item in values(count)]

    return observations


@pytest.mark.parametrize("behavior", END)
def test_ends_of_episodes(client, episode, observations, behavior):
    adder = adders.SequenceAdder(client, 3, 2, end_of_episode_behavior=behavior)
    expected = OBSERVATIONS[behavior]
    assert observations(adder, episode(5), episode(3, 10), count=len(expected)) == expected


@pytest.mark.parametrize(
    ("arguments", "behavior"),
    [
        ({}, END.ZERO_PAD),
        ({"pad_end_of_episode": True}, END.ZERO_PAD),
        ({"pad_end_of_episode": False}, END.TRUNCATE),
        ({"pad_end_of_episode": False, "break_end_of_episode": False}, END.CONTINUE),
        ({"break_end_of_episode": False}, END.CONTINUE),
        ({"break_end_of_episode": True}, END.ZERO_PAD),
    ],
)
def test_older_arguments_for_the_end(client, episode, observations, arguments, behavior):
    adder = adders.SequenceAdder(client, 3, 2, **arguments)
    expected = OBSERVATIONS[behavior]
    assert observations(adder, episode(5), episode(3, 10), count=len(expected)) == expected


def test_all_columns_of_the_end_of_an_episode(client, play, episode, values):
    adder = adders.SequenceAdder(client, 3, 2)
    play(adder, episode(5))
    observation, action, reward, discount, start_of_episode = values(3)[2]
    assert (observation, action, reward) == ([4, 5, 0], [4, 0, 0], [5, 0, 0])
    assert (discount, start_of_episode) == ([0, 0, 0], [False] * 3)


def test_all_columns_across_two_episodes(client, play, episode, values):
    adder = adders.SequenceAdder(client, 3, 2, end_of_episode_behavior=END.CONTINUE)
    play(adder, episode(5), episode(3, 10))
    adder.close()
    observation, action, reward, discount, start_of_episode = values(4)[2]
    assert (observation, action, reward) == ([4, 5, 10], [4, 0, 0], [5, 0, 1])
    assert (discount, start_of_episode) == ([0, 0, 1], [False, False, True])


@pytest.mark.parametrize(
    ("behavior", "expected"),
    [
        (END.WRITE, []),
        (END.CONTINUE, [[0, 1, 2, 10, 11]]),
        (END.ZERO_PAD, [[0, 1, 2, 0, 0], [10, 11, 0, 0, 0]]),
        (END.TRUNCATE, [[0, 1, 2], [10, 11]]),
    ],
)
def test_episodes_shorter_than_a_sequence(client, episode, observations, behavior, expected):
    adder = adders.SequenceAdder(client, 5, 2, end_of_episode_behavior=behavior)
    assert observations(adder, episode(2), episode(1, 10), count=len(expected)) == expected


@pytest.mark.parametrize(
    ("behavior", "expected"),
    [
        (END.WRITE, [[0, 1], [4, 5], [5, 6]]),
        (END.ZERO_PAD, [[0, 1], [4, 5], [0, 0]]),
        (END.TRUNCATE, [[0, 1], [4, 5]]),
    ],
)
def test_a_period_longer_than_the_sequences(client, episode, observations, behavior, expected):
    adder = adders.SequenceAdder(client, 2, 4, end_of_episode_behavior=behavior)
    assert observations(adder, episode(6), count=len(expected)) == expected


def test_an_end_where_an_item_is_due_writes_it_once(client, episode, observations):
    for behavior in (END.WRITE, END.ZERO_PAD, END.TRUNCATE):
        adder = adders.SequenceAdder(client, 3, 2, end_of_episode_behavior=behavior)
        assert observations(adder, episode(4), count=2) == [[0, 1, 2], [2, 3, 4]]


def test_nests_and_extras(client, play, episode, items):
    adder = adders.SequenceAdder(client, 2, 2)
    play(
        adder,
        episode(
            2,
            observation=lambda i: {"a": np.full(2, i, np.int8), "b": [np.float64(i)]},
            extras=lambda i: {"e": np.ones(2, np.int64), "s": np.float32(i)},
        ),
    )
    whole, padded = items(2)
    assert [column.dtype for column in whole] == [
        np.int8, np.float64, np.int32, np.float32, np.float32, np.bool_, np.int64, np.float32
    ]  # fmt: skip
    np.testing.assert_array_equal(whole[0], [[0, 0], [1, 1]])
    np.testing.assert_array_equal(whole[4], [1, 0])
    np.testing.assert_array_equal(whole[6], np.ones((2, 2)))
    np.testing.assert_array_equal(padded[0], [[2, 2], [0, 0]])
    np.testing.assert_array_equal(padded[6], np.zeros((2, 2)))


@pytest.mark.parametrize("extras", [(), [], {}])
def test_empty_extras_are_none(client, play, episode, values, extras):
    play(adders.SequenceAdder(client, 2, 2), episode(1, extras=lambda i: extras))
    assert len(values(1)[0]) == 5


def test_extras_that_some_steps_lack_are_an_error(client, play, episode):
    adder = adders.SequenceAdder(client, 2, 1)
    extras = [{"e": np.float32(1)}, (), ()]
    with pytest.raises(InvalidArgumentError, match=r"Column \('extras', 'e'\) has no value"):
        play(adder, episode(3, extras=lambda i: extras[i]))


def test_observations_in_an_array_that_the_environment_reuses(client, values, episode):
    frame = np.zeros(1, np.float32)
    adder = adders.SequenceAdder(client, 3, 3, end_of_episode_behavior=END.TRUNCATE)
    first, steps = episode(2, observation=lambda i: frame)
    adder.add_first(first)
    for action, timestep, _ in steps:
        frame += 1
        adder.add(action, timestep)
    assert values(1)[0][0] == [[0], [1], [2]]


def test_priority_functions_get_steps(client, play, episode):
    seen = []

    def priority(steps):
        seen.append(steps)
        return float(steps.reward.sum())

    adder = adders.SequenceAdder(client, 2, 2, priority_fns={"priority_table": priority})
    play(adder, episode(1), episode(2, observation=np.float32))
    assert [type(steps) for steps in seen] == [adders.Step] * 3
    np.testing.assert_array_equal(seen[0].start_of_episode, [True, False])
    assert seen[0].extras == ()
    samples = client.sample("priority_table", 3, emit_timesteps=False)
    assert [sample.info.priority for sample in samples] == [1, 3, 0]


def test_signature_of_sequences():
    environment_spec = EnvironmentSpec(
        observations={"a": specs.Array((3,), np.uint8)},
        actions=specs.Array((), np.int32),
        rewards=specs.Array((), np.float32),
        discounts=specs.BoundedArray((), np.float32, 0, 1),
    )
    spec = reverb.specs.TensorSpec
    for length in (None, 5):
        signature = adders.SequenceAdder.signature(
            environment_spec, (specs.Array((2,), np.float32),), sequence_length=length
        )
        # With TensorFlow in the process, leaves are its specs.
        assert tree.map_structure(reverb.specs.as_spec, signature) == adders.Step(
            observation={"a": spec((length, 3), np.uint8, "observation/a")},
            action=spec((length,), np.int32, "action"),
            reward=spec((length,), np.float32, "reward"),
            discount=spec((length,), np.float32, "discount"),
            start_of_episode=spec((length,), np.bool_, "start_of_episode"),
            extras=(spec((length, 2), np.float32, "extras/0"),),
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequence_length": 0}, "sequence_length must be at least 1, got 0"),
        ({"period": 0}, "period must be at least 1, got 0"),
        (
            {"pad_end_of_episode": True, "break_end_of_episode": False},
            "Can't set pad_end_of_episode=True and break_end_of_episode=False at the same time: an "
            "episode that continues in the next one is not padded.",
        ),
        (
            {"break_end_of_episode": True, "end_of_episode_behavior": END.WRITE},
            "Using end_of_episode_behavior and either pad_end_of_episode or break_end_of_episode "
            "is not permitted. Please use only end_of_episode_behavior instead.",
        ),
        (
            {"end_of_episode_behavior": "write"},
            "end_of_episode_behavior must be an instance of EndBehavior, received 'write'",
        ),
    ],
)
def test_bad_arguments(client, error_says, arguments, message):
    arguments = {"sequence_length": 3, "period": 2} | arguments
    error_says(lambda: adders.SequenceAdder(client, **arguments), InvalidArgumentError, message)


def test_reset_between_continued_episodes_does_nothing(client, play, episode, values):
    adder = adders.SequenceAdder(client, 3, 2, end_of_episode_behavior=END.CONTINUE)
    play(adder, episode(5))
    adder.reset()
    adder.reset()
    play(adder, episode(3, 10))
    adder.close()
    assert [item[0] for item in values(4)] == OBSERVATIONS[END.CONTINUE]


def test_reset_within_a_continued_episode_starts_afresh(client, play, episode, values):
    adder = adders.SequenceAdder(client, 3, 2, end_of_episode_behavior=END.CONTINUE)
    play(adder, episode(1))
    first, _ = episode(5, 20)
    adder.add_first(first)
    adder.reset()
    play(adder, episode(2, 10))
    adder.close()
    assert [item[0] for item in values(1)] == [[10, 11, 12]]


def test_arguments_without_effect_are_accepted(client, play, episode, values):
    adder = adders.SequenceAdder(
        client, 3, 2, delta_encoded=True, chunk_length=1, get_signature_timeout_ms=1_000
    )
    play(adder, episode(2))
    assert [item[0] for item in values(1)] == [[0, 1, 2]]
