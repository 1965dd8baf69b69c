# SPDX-License-Identifier: Apache-2.0
"""Columns that a program adds: extras and infos. Priorities and tables."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import reverb
from reverb import errors, testing
from reverb.adapters.gymnasium import Recorder, Sequences, Transitions, signature
from support.coded_env import DISCOUNT, CodedEnv

NUM_ENVS = 4
MODES = tuple(AutoresetMode)


def environments(mode=AutoresetMode.NEXT_STEP, p_end=0.15):
    makers = [lambda number=number: CodedEnv(number, p_end=p_end) for number in range(NUM_ENVS)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def play(recorder, num_steps, before=lambda step, actions: None):
    """Steps whose actions name step and environment: `100 * step + environment`."""
    ended = np.zeros(NUM_ENVS, np.bool_)
    recorder.reset(seed=1)
    for step in range(num_steps):
        if ended.any() and recorder.metadata["autoreset_mode"] == AutoresetMode.DISABLED:
            recorder.reset(options={"reset_mask": ended})
        actions = 100 * step + np.arange(NUM_ENVS)
        before(step, actions)
        _, _, terminated, truncated, _ = recorder.step(actions)
        ended = terminated | truncated
    recorder.close()


def items_of(client):
    return [dict(sample.data) for sample in client.scan("replay", unpack_as_table_signature=True)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_step", [1, 3])
def test_extras_belong_to_the_action(signed, mode, n_step):
    envs = environments(mode)
    items = Transitions(n_step, DISCOUNT)
    extras = {"log_prob": np.zeros(2, np.float32), "nest": {"version": np.int64(0)}}
    buffer = np.zeros((NUM_ENVS, 2), np.float32)
    with signed(signature(envs, items, extras=extras)) as client:
        recorder = Recorder(envs, client, "replay", items)

        def before(_step, actions):
            buffer[:] = actions[:, np.newaxis]
            recorder.extras(log_prob=buffer)
            recorder.extras(nest={"version": 7 * actions})
            buffer[:] = -1  # They are copied.

        play(recorder, 60, before)
        found = items_of(client)
    assert len(found) > 100
    for item in found:
        assert item["log_prob"].tolist() == [item["action"], item["action"]]
        assert item["nest"]["version"] == 7 * item["action"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("keep_infos", [("t",), {"t": -5}])
def test_infos_belong_to_what_the_action_led_to(signed, mode, keep_infos):
    envs = environments(mode)
    items = Transitions(3, DISCOUNT)
    with signed(signature(envs, items, keep_infos={"t": np.int64(0)})) as client:
        play(Recorder(envs, client, "replay", items, keep_infos=keep_infos), 80)
        found = items_of(client)
    missing = keep_infos["t"] if isinstance(keep_infos, dict) else 0
    # `CodedEnv` has the info in two of three steps.
    times = {item["next_observation"][2] for item in found}
    assert len(times) > 5
    for item in found:
        t = item["next_observation"][2]
        assert item["t"] == (t if t % 3 else missing)


def test_sequences_have_extras_and_infos_too(signed):
    envs = environments()
    items = Sequences(3, discount=DISCOUNT)
    examples = {"keep_infos": {"t": np.int64(0)}, "extras": {"x": np.float64(0)}}
    with signed(signature(envs, items, **examples)) as client:
        recorder = Recorder(envs, client, "replay", items, keep_infos=("t",), extras=("x",))
        play(recorder, 30, lambda _step, actions: recorder.extras(x=actions / 2))
        found = items_of(client)
    assert found
    for item in found:
        np.testing.assert_array_equal(item["x"], item["action"] / 2)
        t = item["next_observation"][:, 2]
        np.testing.assert_array_equal(item["t"], np.where(t % 3, t, 0))


def test_extras_must_be_the_same_in_each_step(client):
    recorder = Recorder(environments(), client, "replay")
    recorder.reset(seed=1)
    actions = np.zeros(NUM_ENVS, np.int64)
    recorder.extras(x=actions)
    recorder.step(actions)
    with pytest.raises(errors.InvalidArgumentError, match=r"extras has no \['y'\]"):
        recorder.extras(y=actions)
    with pytest.raises(errors.InvalidArgumentError, match=r"extras of this step lack \['x'\]"):
        recorder.step(actions)
    # No step was made, so the program can do better.
    recorder.extras(x=actions)
    observation, *_ = recorder.step(actions)
    assert observation[:, 2].max() <= 2
    recorder.close()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"reward": np.zeros(NUM_ENVS)}, "extras has the name 'reward'"),
        ({"t": np.zeros(NUM_ENVS)}, "extras has the name 't'"),
        ({"x": np.zeros(NUM_ENVS + 1)}, r"extras x must have a row.*4 environments.*\[5\]"),
        ({"x": 1.0}, r"extras x must have a row.*shape \[\]"),
    ],
)
def test_wrong_extras(client, values, text):
    recorder = Recorder(environments(), client, "replay", keep_infos=("t",))
    with pytest.raises(errors.InvalidArgumentError, match=text):
        recorder.extras(**values)
    recorder.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keep_infos": "t"}, "keep_infos must be a tuple of names, or a dict, got 't'"),
        ({"keep_infos": ("action",)}, "keep_infos has the name 'action'"),
        ({"extras": "x"}, "extras must be a tuple of names, got 'x'"),
        ({"tables": {}}, "tables must name at least one table"),
        ({"tables": {"replay": float("nan")}}, "priority must not be NaN"),
        ({"priority": "most"}, "priority must be a number"),
        ({"items": "transitions"}, "items must be Transitions, Sequences or Episodes"),
    ],
)
def test_wrong_arguments(client, options, text):
    envs = environments()
    with pytest.raises(errors.InvalidArgumentError, match=text):
        Recorder(envs, client, **({"tables": "replay"} | options))
    envs.close()


def test_the_missing_table_is_named(client):
    envs = environments()
    with pytest.raises(errors.TableNotFoundError, match=r"no table 'other'; it has \['replay'\]"):
        Recorder(envs, client, "other")
    envs.close()


def test_an_info_that_is_not_there(client):
    recorder = Recorder(environments(), client, "replay", keep_infos=("lives",))
    recorder.reset(seed=1)
    with pytest.raises(errors.InvalidArgumentError, match=r"they have \['t'\].*'lives': 0.0"):
        recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.close()


@pytest.mark.parametrize("mode", MODES)
def test_no_item_spans_a_step_that_failed(client, mode):
    envs = environments(mode, p_end=0.0)
    recorder = Recorder(envs, client, "replay", Transitions(3, DISCOUNT))
    actions = np.zeros(NUM_ENVS, np.int64)
    recorder.reset(seed=1)
    recorder.step(actions)
    envs.step = lambda _actions: (np.zeros(1), actions, actions > 0, actions > 0, {})
    with pytest.raises(errors.InvalidArgumentError, match="first dimension of column"):
        recorder.step(actions)
    del envs.step
    with pytest.raises(errors.FailedPreconditionError, match="has no episode"):
        recorder.step(actions)
    recorder.reset()
    recorder.step(actions)
    recorder.close()
    for sample in client.scan("replay"):
        _, _, following, observation, *_ = sample.data
        assert following[1] == observation[1]
        assert following[2] - observation[2] == 1


def test_infos_that_are_no_numbers(client):
    class NamingEnv(CodedEnv):
        def step(self, action):
            return *super().step(action)[:4], {"name": "x"}

    envs = SyncVectorEnv([lambda: NamingEnv(0)])
    recorder = Recorder(envs, client, "replay", keep_infos=("name",))
    recorder.reset(seed=1)
    with pytest.raises(errors.InvalidArgumentError, match="'name', whose values have dtype object"):
        recorder.step(np.zeros(1, np.int64))
    recorder.close()


def priorities(client, table):
    return sorted(sample.info.priority for sample in client.scan(table))


def test_priorities_of_several_tables():
    with testing.server([testing.table(name) for name in "abc"]) as client:
        tables = {"a": 2.0, "b": None, "c": lambda step: step["action"] + 0.5}
        recorder = Recorder(environments(p_end=0.0), client, tables, priority=3.0)
        play(recorder, 2)
        assert priorities(client, "a") == [2.0] * 8
        assert priorities(client, "b") == [3.0] * 8
        expected = [number + 0.5 for number in (0, 1, 2, 3, 100, 101, 102, 103)]
        assert priorities(client, "c") == expected


def test_a_function_sees_the_step_that_completes_the_items(client):
    seen = []

    def priority(step):
        seen.append({name: np.array(value) for name, value in step.items()})
        return np.abs(step["reward"])

    envs = environments(p_end=0.0)
    play(Recorder(envs, client, "replay", Transitions(2, DISCOUNT), priority=priority), 3)
    names = ["action", "discount", "next_observation", "reward", "terminated", "truncated"]
    assert [sorted(step) for step in seen] == [names] * 3
    # Two steps complete an item, and so does the end.
    assert [step["next_observation"][0, 2] for step in seen] == [2, 3, 3]
    items = sorted((abs(sample.data[4]), sample.info.priority) for sample in client.scan("replay"))
    assert items
    assert all(reward == priority for reward, priority in items)


@pytest.mark.parametrize("value", [[1.0], ["x"] * NUM_ENVS])
def test_a_function_of_priorities_returns_numbers(client, value):
    recorder = Recorder(environments(), client, "replay", priority=lambda _step: value)
    recorder.reset(seed=1)
    with pytest.raises(errors.InvalidArgumentError, match=r"numbers of shape \[4\], got dtype"):
        recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.close()


@pytest.mark.parametrize("priority", ["max", reverb.MAX_PRIORITY], ids=["text", "constant"])
def test_the_largest_priority(client, priority):
    play(Recorder(environments(), client, "replay", priority=priority), 2)
    assert set(priorities(client, "replay")) == {1.0}
    key = client.sample_batch("replay", 1).info.key
    client.update_priorities("replay", key, 7.0)
    play(Recorder(environments(), client, "replay", priority=priority), 2)
    assert set(priorities(client, "replay")) == {1.0, 7.0}
    assert priorities(client, "replay").count(7.0) > 1


def test_the_recorder_is_a_wrapper(client):
    envs = environments()
    recorder = Recorder(envs, client, "replay")
    assert isinstance(recorder, gymnasium.vector.VectorEnv)
    assert recorder.unwrapped is envs
    assert (recorder.num_envs, recorder.action_space) == (NUM_ENVS, envs.action_space)
    recorder.close()
    recorder.close()
    assert envs.closed
    with pytest.raises(errors.FailedPreconditionError, match="the recorder is closed"):
        recorder.step(np.zeros(NUM_ENVS, np.int64))
