# SPDX-License-Identifier: Apache-2.0
"""The adder over a structured writer, and the configs for it."""

import numpy as np
import pytest
from dm_env import specs

import reverb
from reverb import structured_writer as sw
from reverb.adapters.acme import adders
from reverb.adapters.acme.specs import EnvironmentSpec
from reverb.adapters.acme.types import Transition
from reverb.errors import InvalidArgumentError, UnimplementedError

END = adders.EndBehavior
FLOAT = specs.Array((), np.float32)
STEP_SPEC = adders.create_step_spec(EnvironmentSpec(FLOAT, specs.Array((), np.int32), FLOAT, FLOAT))


@pytest.fixture
def written(client, play, items):
    """The items that two adders make of the same episodes."""

    def written(adder, count, *episodes):
        play(adder, *episodes)
        adder.close()
        return items(count)

    return written


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
def test_transitions_are_those_of_the_other_adder(client, written, episode, n_step):
    episodes = [episode(4), episode(1, 10), episode(7, 20)]
    count = sum(steps + min(steps, n_step) - 1 for steps in (4, 1, 7))
    expected = written(adders.NStepTransitionAdder(client, n_step, 0.5), count, *episodes)
    configs = adders.create_n_step_transition_config(STEP_SPEC, n_step)
    items = written(adders.StructuredAdder(client, 5, configs, STEP_SPEC), count, *episodes)
    for item, transition in zip(items, expected, strict=True):
        assert [len(item[0]), len(item[1]), len(item[4])] == [2, 1, 1]
        made = adders.n_step_from_trajectory(adders.Step(*item), 0.5)
        assert type(made) is Transition
        np.testing.assert_array_equal(list(made[:5]), transition)
        assert made.reward.dtype == np.float32


@pytest.mark.parametrize("behavior", [END.TRUNCATE, END.WRITE])
@pytest.mark.parametrize(("length", "period"), [(1, 1), (3, 2), (4, 4), (5, 1), (2, 3)])
def test_sequences_are_those_of_the_other_adder(
    client, play, episode, items, length, period, behavior
):
    episodes = [episode(5), episode(3, 10), episode(1, 20), episode(9, 30)]
    adder = adders.SequenceAdder(client, length, period, end_of_episode_behavior=behavior)
    play(adder, *episodes)
    expected = items(client.server_info()["priority_table"].current_size)
    configs = adders.create_sequence_config(
        STEP_SPEC, length, period, end_of_episode_behavior=behavior
    )
    play(adders.StructuredAdder(client, 5, configs, STEP_SPEC), *episodes)
    for item, other in zip(items(len(expected)), expected, strict=True):
        for column, wanted in zip(item, other, strict=True):
            assert column.dtype == wanted.dtype
            np.testing.assert_array_equal(column, wanted)


def test_nests_and_extras(client, play, episode, items):
    step_spec = adders.create_step_spec(
        EnvironmentSpec({"a": specs.Array((2,), np.int8)}, FLOAT, FLOAT, FLOAT),
        {"e": specs.Array((), np.int64)},
    )
    configs = adders.create_n_step_transition_config(step_spec, 2)
    adder = adders.StructuredAdder(client, 5, configs, step_spec)
    play(
        adder,
        episode(
            2,
            observation=lambda i: {"a": np.full(2, i, np.int8)},
            extras=lambda i: {"e": np.int64(i)},
        ),
    )
    items = items(3)
    assert [item[0].tolist() for item in items] == [
        [[0, 0], [1, 1]],
        [[0, 0], [2, 2]],
        [[1, 1], [2, 2]],
    ]
    assert [item[5].tolist() for item in items] == [[0], [0], [1]]


def test_a_table_for_the_items_of_the_configs(serve_tables, play, episode):
    configs = adders.create_n_step_transition_config(STEP_SPEC, 3)
    signature = sw.infer_signature(configs, STEP_SPEC)
    shapes = [reverb.specs.as_spec(signature[field]).shape for field in range(5)]
    assert shapes == [(2,), (1,), (None,), (None,), (1,)]
    table = reverb.testing.table("priority_table", signature=signature)
    client = serve_tables(table)
    play(adders.StructuredAdder(client, 5, configs, STEP_SPEC), episode(3))
    assert client.server_info()["priority_table"].current_size == 5


def test_a_pattern_of_ones_own(client, written, episode):
    def observations_only(step_spec, length):
        step = sw.create_reference_step(step_spec)
        return {"observation": step.observation[-length:]}

    configs = adders.create_sequence_config(
        STEP_SPEC, 2, 1, end_of_episode_behavior=END.WRITE, sequence_pattern=observations_only
    )
    items = written(adders.StructuredAdder(client, 5, configs, STEP_SPEC), 3, episode(3))
    assert [[column.tolist() for column in item] for item in items] == [
        [[0, 1]],
        [[1, 2]],
        [[2, 3]],
    ]


@pytest.mark.parametrize("behavior", [END.ZERO_PAD, END.CONTINUE])
def test_ends_that_a_structured_writer_does_not_have(behavior):
    with pytest.raises(NotImplementedError, match="use TRUNCATE or WRITE"):
        adders.create_sequence_config(STEP_SPEC, 3, 2, end_of_episode_behavior=behavior)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: adders.create_sequence_config(STEP_SPEC, 0, 1),
            "sequence_length must be at least 1, got 0",
        ),
        (
            lambda: adders.create_sequence_config(STEP_SPEC, 1, 0),
            "period must be at least 1, got 0",
        ),
        (
            lambda: adders.create_sequence_config(STEP_SPEC, 1, 1, end_of_episode_behavior=1),
            "end_of_episode_behavior must be an instance of EndBehavior, received 1",
        ),
        (
            lambda: adders.create_n_step_transition_config(STEP_SPEC, 0),
            "n_step must be at least 1, got 0",
        ),
    ],
)
def test_bad_arguments_of_configs(error_says, make, message):
    error_says(make, InvalidArgumentError, message)


def test_no_configs(client, error_says):
    error_says(
        lambda: adders.StructuredAdder(client, 1, [], STEP_SPEC),
        InvalidArgumentError,
        "configs must hold at least one config, got none",
    )


def test_configs_that_do_not_fit_together(client):
    step = sw.create_reference_step(STEP_SPEC)
    configs = [
        sw.create_config({"x": step.observation[-1]}, "table"),
        sw.create_config({"y": step.observation[-1]}, "table"),
    ]
    with pytest.raises(ValueError, match="configs of table table have no common signature"):
        adders.StructuredAdder(client, 1, configs, STEP_SPEC)


def test_tables_come_from_configs_only(client):
    configs = adders.create_n_step_transition_config(STEP_SPEC, 1)
    adder = adders.StructuredAdder(client, 1, configs, STEP_SPEC)
    with pytest.raises(UnimplementedError, match="gets its tables from its configs"):
        adder.add_priority_table("other", None)


def test_transitions_of_a_batch():
    steps = adders.Step(
        observation=np.arange(8.0).reshape(2, 2, 2),
        action=np.int32([[1], [2]]),
        reward={"a": np.float32([[1, 2, 3], [4, 5, 6]]), "b": np.ones((2, 3), np.float32)},
        discount=np.ones((2, 3), np.float32),
        start_of_episode=np.zeros((2, 1), bool),
    )
    transition = adders.n_step_from_trajectory(steps, 0.5, time_axis=1)
    np.testing.assert_array_equal(transition.reward["a"], [1 + 1 + 0.75, 4 + 2.5 + 1.5])
    np.testing.assert_array_equal(transition.reward["b"], [1.75, 1.75])
    np.testing.assert_array_equal(transition.discount["a"], [0.25, 0.25])
    np.testing.assert_array_equal(transition.observation, [[0, 1], [4, 5]])
    np.testing.assert_array_equal(transition.next_observation, [[2, 3], [6, 7]])
    np.testing.assert_array_equal(transition.action, [1, 2])
    assert transition.reward["a"].dtype == np.float32


def test_items_not_taken_yet_are_sent_when_the_adder_is_dropped(client, episode, items):
    configs = adders.create_n_step_transition_config(STEP_SPEC, 1)
    adder = adders.StructuredAdder(client, None, configs, STEP_SPEC)
    first, steps = episode(20)
    adder.add_first(first)
    for action, timestep, _ in steps[:10]:
        adder.add(action, timestep)
    del adder
    items(10)
