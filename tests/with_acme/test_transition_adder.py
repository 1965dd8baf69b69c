# SPDX-License-Identifier: Apache-2.0
"""Transitions over several steps."""

import dm_env
import numpy as np
import pytest
import tree
from dm_env import specs

import reverb
from reverb import testing
from reverb.adapters.acme import adders
from reverb.adapters.acme.specs import EnvironmentSpec
from reverb.adapters.acme.types import Transition
from reverb.errors import InvalidArgumentError, SignatureMismatchError

ONE_STEP = [[0, 0, 1, 1, 1], [1, 1, 2, 1, 2], [2, 2, 3, 1, 3], [3, 3, 4, 0, 4]]
THREE_STEPS = [
    [0, 0, 1, 1, 1],
    [0, 0, 2, 0.5, 2],
    [0, 0, 2.75, 0.25, 3],
    [1, 1, 4.5, 0, 4],
    [2, 2, 5, 0, 4],
    [3, 3, 4, 0, 4],
]


@pytest.mark.parametrize(("n_step", "expected"), [(1, ONE_STEP), (3, THREE_STEPS)])
def test_transitions_of_an_episode(client, play, episode, values, n_step, expected):
    play(adders.NStepTransitionAdder(client, n_step, 0.5), episode(4))
    assert values(len(expected)) == expected


def test_columns_keep_their_dtypes_and_shapes(client, play, episode, items):
    play(
        adders.NStepTransitionAdder(client, 2, 0.5),
        episode(2, observation=lambda i: np.full((2, 3), i, np.uint8)),
    )
    for item in items(3):
        assert [column.dtype for column in item] == [
            np.uint8,
            np.int32,
            np.float32,
            np.float32,
            np.uint8,
        ]
        assert [column.shape for column in item] == [(2, 3), (), (), (), (2, 3)]


def test_an_episode_shorter_than_n_steps(client, play, episode, values):
    play(adders.NStepTransitionAdder(client, 5, 0.5), episode(2), episode(1, 10))
    assert values(4) == [[0, 0, 1, 1, 1], [0, 0, 2, 0, 2], [1, 1, 2, 0, 2], [10, 0, 1, 0, 11]]


def test_a_truncated_episode_keeps_its_discount(client, play, episode, values):
    play(adders.NStepTransitionAdder(client, 2, 0.5), episode(2, discount=lambda i: np.float32(1)))
    assert values(3) == [[0, 0, 1, 1, 1], [0, 0, 2, 0.5, 2], [1, 1, 2, 1, 2]]


def test_extras_are_those_of_the_first_step(client, play, episode, values):
    extras = {"extras": lambda i: {"logits": np.float32([i, -i])}}
    play(adders.NStepTransitionAdder(client, 2, 0.5), episode(3, **extras))
    assert [item[5] for item in values(4)] == [[0, 0], [0, 0], [1, -1], [2, -2]]


def test_a_nest_of_rewards_shares_one_discount(client, play, episode, values):
    reward = {"a": np.float32(1), "b": np.float32(2)}
    play(
        adders.NStepTransitionAdder(client, 2, 0.5),
        episode(2, reward=lambda i: reward, discount=lambda i: np.float32(0.5)),
    )
    # observation, action, rewards, discounts, next observation
    assert values(3)[1] == [0, 0, 1.25, 2.5, 0.125, 0.125, 2]


def test_a_nest_of_discounts_shares_one_reward(client, play, episode, values):
    discount = {"a": np.float32(0.5), "b": np.float32(1)}
    play(
        adders.NStepTransitionAdder(client, 2, {"a": 0.5, "b": 0.25}),
        episode(2, discount=lambda i: discount),
    )
    assert values(3)[1] == [0, 0, 1.5, 1.5, 0.125, 0.25, 2]


def test_nests_that_differ_are_an_error(client, play, episode):
    adder = adders.NStepTransitionAdder(client, 2, 0.5)
    with pytest.raises(InvalidArgumentError, match="must have the same structure"):
        play(
            adder,
            episode(2, reward=lambda i: {"a": np.float32(1)}, discount=lambda i: {"b": 1.0}),
        )


def test_a_structure_other_than_before_is_an_error(client, play, episode):
    adder = adders.NStepTransitionAdder(client, 2, 0.5)
    rewards = [{"a": np.float32(1)}, np.float32(1)]
    with pytest.raises(SignatureMismatchError, match=r"leaves at \[\(\)\], but in the first step"):
        play(adder, episode(2, reward=lambda i: rewards[i]))


def test_arrays_of_rewards_broadcast_against_discounts(client, play, episode, items):
    play(
        adders.NStepTransitionAdder(client, 2, 0.5),
        episode(2, discount=lambda i: np.float32([1, 0.5])),
    )
    first, second, _ = items(3)
    assert (first[2].shape, first[3].shape) == ((2,), (2,))
    np.testing.assert_array_equal(second[2], [2, 1.5])
    np.testing.assert_array_equal(second[3], [0.5, 0.125])


def test_the_agents_discount_is_rounded_to_float32(client, play, episode, items):
    play(
        adders.NStepTransitionAdder(client, 2, 0.99),
        episode(2, reward=np.float64, discount=lambda i: 1.0),
    )
    assert items(3)[1][2] == np.float64(np.float32(0.99))


@pytest.mark.parametrize("reward", [int, np.int32, np.float16])
def test_returns_have_the_dtype_that_the_signature_says(serve_tables, play, episode, reward):
    environment_spec = EnvironmentSpec(
        observations=specs.Array((), np.float32),
        actions=specs.Array((), np.int32),
        rewards=specs.Array((), np.asarray(reward(1)).dtype),
        discounts=specs.Array((), np.float32),
    )
    signature = adders.NStepTransitionAdder.signature(environment_spec)
    client = serve_tables(testing.table("priority_table", signature=signature))
    play(adders.NStepTransitionAdder(client, 2, 0.5), episode(2, reward=reward))
    (sample,) = client.sample("priority_table", 1, emit_timesteps=False)
    assert sample.data[2].dtype == reverb.specs.as_spec(signature.reward).dtype


def test_rewards_in_an_array_that_the_environment_reuses(client, episode, values):
    reward = np.zeros(1, np.float32)
    adder = adders.NStepTransitionAdder(client, 3, 1.0)
    first, steps = episode(3, reward=lambda i: reward)
    adder.add_first(first)
    for i, (action, timestep, _) in enumerate(steps):
        reward[0] = i + 1
        adder.add(action, timestep)
    assert [item[2] for item in values(5)] == [[1], [3], [6], [5], [3]]


def test_a_reward_that_is_no_number_is_an_error(client, play, episode):
    adder = adders.NStepTransitionAdder(client, 2, 0.5)
    with pytest.raises(InvalidArgumentError, match="the reward of a step must be numbers, got obj"):
        play(adder, episode(2, reward=lambda i: None))


def test_a_reward_of_another_dtype_than_before_is_an_error(client, play, episode):
    adder = adders.NStepTransitionAdder(client, 2, 0.5)
    rewards = [np.float32(1), np.float64(1)]
    with pytest.raises(SignatureMismatchError, match="dtypes float64 and float32, but"):
        play(adder, episode(2, reward=lambda i: rewards[i]))


def test_priority_functions_get_a_transition(client, play, episode):
    seen = []

    def priority(transition):
        seen.append(transition)
        return np.float32(transition.reward)

    adder = adders.NStepTransitionAdder(client, 1, 0.5, priority_fns={"priority_table": priority})
    play(adder, episode(2, extras=lambda i: {"e": np.int64(i)}))
    assert [type(transition) for transition in seen] == [Transition] * 2
    assert seen[1] == Transition(1, 1, 2, 0, 2, {"e": 1})
    assert seen[1].observation.dtype == np.float32
    samples = client.sample("priority_table", 2, emit_timesteps=False)
    assert [sample.info.priority for sample in samples] == [1, 2]


def test_transitions_of_a_class_of_ones_own(client, play, episode):
    class Mine(Transition):
        pass

    seen = []
    adder = adders.NStepTransitionAdder(
        client,
        1,
        0.5,
        priority_fns={"priority_table": lambda item: seen.append(item) or 1.0},
        transition_type=Mine,
    )
    play(adder, episode(1))
    assert type(seen[0]) is Mine


def test_signature_of_transitions():
    signature = adders.NStepTransitionAdder.signature(
        EnvironmentSpec(
            observations={"a": specs.Array((3,), np.uint8), "b": [specs.Array((), np.int8)]},
            actions=specs.BoundedArray((2,), np.float32, 0, 1, name="act"),
            rewards={"x": specs.Array((), np.float32), "y": specs.Array((2,), np.float32)},
            discounts=specs.Array((), np.float32),
        ),
        extras_spec={"e": specs.Array((2,), np.int64)},
    )
    spec = reverb.specs.TensorSpec
    # With TensorFlow in the process, leaves are its specs.
    assert tree.map_structure(reverb.specs.as_spec, signature) == Transition(
        observation={
            "a": spec((3,), np.uint8, "observation/a"),
            "b": [spec((), np.int8, "observation/b/0")],
        },
        action=spec((2,), np.float32, "action"),
        reward={"x": spec((), np.float32, "reward/x"), "y": spec((2,), np.float32, "reward/y")},
        discount={
            "x": spec((), np.float32, "discount/x"),
            "y": spec((), np.float32, "discount/y"),
        },
        next_observation={
            "a": spec((3,), np.uint8, "next_observation/a"),
            "b": [spec((), np.int8, "next_observation/b/0")],
        },
        extras={"e": spec((2,), np.int64, "extras/e")},
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_step": 0, "discount": 1.0}, "n_step must be at least 1, got 0"),
        (
            {"n_step": 1, "discount": np.ones(2)},
            "discount must be a number or a nest of numbers, got array([1., 1.])",
        ),
        (
            {"n_step": 1, "discount": 1.0, "max_in_flight_items": -1},
            "max_in_flight_items must be at least 0 or None, got -1",
        ),
    ],
)
def test_bad_arguments(client, error_says, arguments, message):
    error_says(
        lambda: adders.NStepTransitionAdder(client, **arguments), InvalidArgumentError, message
    )


def test_specs_of_rewards_without_a_shape_are_an_error():
    environment_spec = EnvironmentSpec(
        np.float32, np.float32, reverb.specs.TensorSpec(None), np.float32
    )
    with pytest.raises(InvalidArgumentError, match="must have shapes"):
        adders.NStepTransitionAdder.signature(environment_spec)


def test_no_waiting_for_items_in_flight(client, play, episode, values):
    adder = adders.NStepTransitionAdder(client, 1, 0.5, max_in_flight_items=None)
    play(adder, episode(4))
    assert values(4) == ONE_STEP


def test_add_before_add_first_is_an_error(client, error_says):
    adder = adders.NStepTransitionAdder(client, 1, 0.5)
    error_says(
        lambda: adder.add(np.int32(0), dm_env.transition(1.0, 1.0)),
        InvalidArgumentError,
        "adder.add_first must be called before adder.add: no episode is in progress",
    )
