# SPDX-License-Identifier: Apache-2.0
"""Environments whose values have other dtypes, or rewards other shapes, than their spaces say."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from reverb import errors
from reverb.adapters.gymnasium import EnvRecorder, Recorder, Sequences, Transitions, signature
from support import scalar_items

NUM_ENVS = 3
UINT8 = spaces.Box(0, 255, (2,), np.uint8)
FLOAT32 = spaces.Box(-9, 9, (2,), np.float32)


class GivenEnvs(gymnasium.vector.VectorEnv):
    """Gives the observations `[B, ...]` of a list, one after the other, and ends now and then."""

    def __init__(self, space, observations, mode=AutoresetMode.NEXT_STEP, action_space=None):
        self.num_envs = NUM_ENVS
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = space
        self.single_action_space = action_space or spaces.Discrete(5)
        self.observation_space = batch_space(space, NUM_ENVS)
        self.action_space = batch_space(self.single_action_space, NUM_ENVS)
        self.given = iter(observations)
        self.results = {"rewards": np.zeros(NUM_ENVS), "over": np.zeros(NUM_ENVS, np.bool_)}
        self.infos = {}

    def reset(self, *, seed=None, options=None):
        return next(self.given), {}

    def step(self, actions):
        over = self.results["over"]
        return next(self.given), self.results["rewards"], over, np.zeros_like(over), self.infos


class GivenEnv(gymnasium.Env):
    """The same of one environment."""

    action_space = spaces.Discrete(5)

    def __init__(self, space, observations, reward=1.0, over=False):
        self.observation_space, self.given = space, iter(observations)
        self.reward, self.over = reward, over

    def reset(self, *, seed=None, options=None):
        return next(self.given), {}

    def step(self, action):
        return next(self.given), self.reward, self.over, False, {}


def recorded(client, space, observations, is_vector):
    """The items of an environment that gives these observations."""
    if is_vector:
        rows = [np.stack([it] * NUM_ENVS) for it in observations]
        recorder = Recorder(GivenEnvs(space, rows), client, "replay")
    else:
        recorder = EnvRecorder(GivenEnv(space, observations), client, "replay")
    recorder.reset()
    for _ in observations[1:]:
        recorder.step(np.ones(NUM_ENVS, np.int64) if is_vector else 1)
    recorder.close()
    return list(scalar_items.stored(client))


@pytest.mark.parametrize("is_vector", [False, True])
@pytest.mark.parametrize("given", ["uint8", "bool", "int16", "int64", "float16", "float32", ">f8"])
@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "bool", "int32", "uint64", "float32", "float64"]
)
def test_what_is_stored_has_the_dtype_of_the_space(client, dtype, given, is_vector):
    space = spaces.Box(0, 1, (2,), dtype)
    values = [np.array([at % 2, 1], given) for at in range(4)]
    found = recorded(client, space, values, is_vector)
    assert len(found) == 3 * (NUM_ENVS if is_vector else 1)
    for column in ("observation", "next_observation"):
        assert {item[column].dtype for item in found} == {np.dtype(dtype)}
        assert {tuple(item[column].tolist()) for item in found} == {(0, 1), (1, 1)}


@pytest.mark.parametrize("is_vector", [False, True])
def test_reset_and_step_may_differ(client, is_vector):
    values = [np.array([0.1, 2], np.float32), np.array([0.1, 3]), np.array([1, 1e300])]
    found = recorded(client, FLOAT32, values, is_vector)
    assert {item["next_observation"].dtype for item in found} == {np.dtype(np.float32)}
    first = [item for item in found if item["observation"][1] == 2]
    assert all(item["next_observation"][0] == np.float32(0.1) for item in first)
    assert np.inf in {item["next_observation"][1] for item in found}


@pytest.mark.parametrize(
    ("space", "value", "text"),
    [
        (UINT8, np.array([[1, 2], [3, 300], [0, 0]]), "environment 1 has the value 300 of dtype "
         "int64 in observation, which does not fit into uint8, the dtype of its space; correct"),
        (UINT8, np.array([[1, 2], [3, 4], [0.5, 0]]), "environment 2 has the value 0.5 of dtype "
         "float64 in observation, which is no integer, as uint8 has, the dtype of its space"),
        (UINT8, np.array([[1, 2], [np.nan, 4], [5, 0]]), "environment 1 has the value nan of "),
        (UINT8, np.array([[1, -1], [3, 4], [5, 0]], np.int8), "environment 0 has the value -1 of "),
        (spaces.MultiBinary(2), np.full((3, 2), 128), "the value 128 .* does not fit into int8"),
        (spaces.Box(0, 1, (2,), np.bool_), np.full((3, 2), 2), "value 2 .* does not fit into bool"),
        (spaces.Box(0, 9, (2,), np.uint64), np.full((3, 2), -1), "value -1 .* fit into uint64"),
        (spaces.Box(0, 9, (2,), np.int64), np.full((3, 2), 2.0**63), "does not fit into int64"),
        (spaces.Box(0, 9, (2,), np.int64), np.full((3, 2), np.inf), "value inf .* into int64"),
        (spaces.Dict(a=UINT8), {"a": np.full((3, 2), 256)}, r"int64 in observation\['a'\], which"),
        (spaces.Tuple((UINT8,)), (np.full((3, 2), 256),), r"int64 in observation\[0\], which"),
        (spaces.Dict(a=UINT8), {"b": np.zeros((3, 2))}, r"must be a dict with the keys \['a'\]"),
        (UINT8, np.full((3, 2), "a"), "observation has values of dtype <U1, where its space has"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("at_reset", [False, True])
def test_a_value_that_does_not_fit_is_an_error(client, space, value, text, at_reset):
    good = space_zeros(space)
    given = [value, good, good, good] if at_reset else [good, value, good, good]
    recorder = Recorder(GivenEnvs(space, given), client, "replay")
    if not at_reset:
        recorder.reset()
    fails = recorder.reset if at_reset else lambda: recorder.step(np.zeros(NUM_ENVS, np.int64))
    with pytest.raises(errors.InvalidArgumentError, match=text):
        fails()
    # The step is missing, so nothing may go on from here.
    with pytest.raises(errors.FailedPreconditionError, match="has no episode; call reset"):
        recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.reset()
    recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.close()
    assert len(list(scalar_items.stored(client))) == NUM_ENVS


def space_zeros(space):
    if isinstance(space, spaces.Dict):
        return {name: space_zeros(leaf) for name, leaf in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(space_zeros, space))
    return np.zeros((NUM_ENVS, *space.shape), space.dtype)


def test_a_reset_that_failed_interrupts_the_episode_before(client):
    good = space_zeros(UINT8)
    recorder = Recorder(GivenEnvs(UINT8, [good, good, good + 300.0, good]), client, "replay")
    recorder.reset()
    recorder.step(np.zeros(NUM_ENVS, np.int64))
    with pytest.raises(errors.InvalidArgumentError, match=r"value 300\.0"):
        recorder.reset()
    with pytest.raises(errors.FailedPreconditionError, match="has no episode"):
        recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.close()
    assert len(list(scalar_items.stored(client))) == NUM_ENVS


def test_rows_that_are_not_reset_are_not_looked_at(client):
    good, other = space_zeros(UINT8), space_zeros(UINT8).astype(np.float64)
    other[0] = np.nan
    envs = GivenEnvs(UINT8, [good, good, other, good], AutoresetMode.DISABLED)
    recorder = Recorder(envs, client, "replay")
    recorder.reset()
    recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.reset(options={"reset_mask": np.array([False, True, True])})
    recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.close()
    assert len(list(scalar_items.stored(client))) == 2 * NUM_ENVS


@pytest.mark.parametrize("as_objects", [False, True])
def test_last_observations_are_not_cut_off(client, as_objects):
    good, final = space_zeros(UINT8), np.full((NUM_ENVS, 2), 7.5)
    envs = GivenEnvs(UINT8, [good, good], AutoresetMode.SAME_STEP)
    envs.results["over"] = np.array([False, True, False])
    rows = final
    if as_objects:
        rows = np.empty(NUM_ENVS, object)
        rows[1] = final[1]
    envs.infos = {"final_obs": rows, "_final_obs": envs.results["over"]}
    recorder = Recorder(envs, client, "replay")
    recorder.reset()
    with pytest.raises(errors.InvalidArgumentError, match=r"environment 1 has the value 7\.5 of"):
        recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.close()


@pytest.mark.parametrize(
    "actions", [np.full(NUM_ENVS, 1.5), np.full(NUM_ENVS, np.nan), [1, 2, 0.5]]
)
def test_a_fraction_is_no_discrete_action(client, actions):
    good = space_zeros(UINT8)
    recorder = Recorder(GivenEnvs(UINT8, [good] * 3), client, "replay")
    recorder.reset()
    with pytest.raises(errors.InvalidArgumentError, match="in action, which is no integer"):
        recorder.step(actions)
    recorder.close()


@pytest.mark.parametrize("items", [Transitions(), Transitions(3, 0.5), Sequences(2)])
@pytest.mark.parametrize(
    ("reward", "over"),
    [
        (2.0, False),
        (np.array([2.0], np.float32), np.array([False])),
        (np.array(2), np.array(False)),
        (np.float16(2), np.bool_(False)),
        (2, 0),
    ],
)
def test_a_reward_may_have_one_dimension_of_one(signed, reward, over, items):
    observations = [np.zeros(2, np.uint8)] * 7
    env = GivenEnv(UINT8, observations, reward, over)
    with signed(signature(env, items)) as client:
        recorder = EnvRecorder(env, client, "replay", items)
        recorder.reset()
        for _ in range(6):
            result = recorder.step(1)
            assert result[1] is reward
        recorder.close()
        found = [sample.data[4] for sample in client.scan("replay")]
    sums = {2.0, 3.0, 3.5} if items == Transitions(3, 0.5) else {2.0}
    assert {float(it) for array in found for it in np.ravel(array)} == sums


@pytest.mark.parametrize(
    ("reward", "over", "text"),
    [
        (np.zeros(2), False, r"reward of a step must be a number or an array of shape \[1\], got "
         r"dtype float64 and shape \[2\]; convert it"),
        (np.zeros((1, 1)), False, r"reward of a step .* shape \[1, 1\]"),
        (None, False, "reward of a step .* dtype object"),
        ("1", False, "reward of a step .* dtype <U1"),
        (1.0, np.zeros(2, np.bool_), r"terminated of a step .* shape \[2\]"),
    ],
)  # fmt: skip
def test_another_shape_of_a_reward_is_an_error(client, reward, over, text):
    env = GivenEnv(UINT8, [np.zeros(2, np.uint8)] * 3, reward, over)
    recorder = EnvRecorder(env, client, "replay")
    recorder.reset()
    with pytest.raises(errors.InvalidArgumentError, match=text):
        recorder.step(1)
    recorder.close()
    assert list(scalar_items.stored(client)) == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "rewards",
            np.zeros((NUM_ENVS, 1)),
            r"rewards of a step must be of shape \[3\], got dtype",
        ),
        ("rewards", 1.0, r"rewards of a step must be of shape \[3\], .* shape \[\]"),
        ("over", np.zeros((NUM_ENVS, 1), np.bool_), r"terminations of a step .* shape \[3, 1\]"),
    ],
)
def test_rewards_of_several_environments_have_a_row_for_each(client, name, value, text):
    good = space_zeros(UINT8)
    envs = GivenEnvs(UINT8, [good] * 3)
    envs.results[name] = value
    recorder = Recorder(envs, client, "replay")
    recorder.reset()
    with pytest.raises(errors.InvalidArgumentError, match=text):
        recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.close()
