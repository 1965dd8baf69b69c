# SPDX-License-Identifier: Apache-2.0
"""Every space of arrays, in this process and in others, with and without shared memory."""

import copy
import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from reverb import errors
from reverb.adapters.gymnasium import Recorder, Transitions, signature
from support import scalar_items

NUM_ENVS = 3
SPACES = {
    "box": spaces.Box(-1, 1, (2,), np.float64),
    "image": spaces.Box(0, 255, (12, 12, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(4),
    "dict": spaces.Dict(
        b=spaces.Discrete(3), a=spaces.Dict(inner=spaces.Box(-1, 1, (), np.float32))
    ),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2, 2), np.float32))),
}
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


class SampledEnv(gymnasium.Env):
    """Observations are samples of a space; each fourth step ends the episode."""

    def __init__(self, space):
        # Environments of one process must not share their random numbers.
        self.observation_space = copy.deepcopy(SPACES[space])
        self.action_space = copy.deepcopy(SPACES[space])
        self._t = 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.observation_space.seed(seed)
        self._t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self._t += 1
        return self.observation_space.sample(), 1.0, self._t == 4, False, {"t": self._t}


def makers(space):
    return [functools.partial(SampledEnv, space)] * NUM_ENVS


KINDS = {
    "sync": SyncVectorEnv,
    "async": functools.partial(AsyncVectorEnv, shared_memory=False),
    "shared": AsyncVectorEnv,
    "same_buffers": functools.partial(AsyncVectorEnv, copy=False),
}


def actions_of(envs, seed):
    envs.action_space.seed(seed)
    return envs.action_space.sample()


def expected_items(space, mode, num_steps):
    """The items of environments that are stepped alone."""
    vector = SyncVectorEnv(makers(space), autoreset_mode=AutoresetMode.DISABLED)
    for number, env in enumerate(vector.envs):
        observation, _ = env.reset(seed=1 + number)
        ended = False
        for step in range(num_steps):
            action = row_of(actions_of(vector, step), number)
            if ended and mode == AutoresetMode.NEXT_STEP:
                observation, _ = env.reset()
                ended = False
                continue
            following, reward, ended, _, _ = env.step(action)
            yield {
                "observation": observation,
                "action": action,
                "reward": reward,
                "discount": 0.0 if ended else 0.5,
                "next_observation": following,
                "terminated": ended,
                "truncated": False,
            }
            observation = following
            if ended and mode == AutoresetMode.SAME_STEP:
                observation, _ = env.reset()
    vector.close()


def row_of(nest, row):
    if isinstance(nest, dict):
        return {name: row_of(part, row) for name, part in nest.items()}
    if isinstance(nest, tuple):
        return tuple(row_of(part, row) for part in nest)
    return nest[row]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_values_come_back(signed, space, kind, mode):
    envs = KINDS[kind](makers(space), autoreset_mode=mode)
    items = Transitions(discount=0.5)
    with signed(signature(envs, items)) as client:
        recorder = Recorder(envs, client, "replay", items)
        recorder.reset(seed=1)
        for step in range(11):
            recorder.step(actions_of(recorder, step))
        recorder.close()
        found = [
            dict(sample.data) for sample in client.scan("replay", unpack_as_table_signature=True)
        ]
    dtypes = np.asarray(found[0]["reward"]).dtype, np.asarray(found[0]["truncated"]).dtype
    assert dtypes == (np.float32, np.bool_)
    expected = scalar_items.multiset(expected_items(space, mode, 11))
    assert scalar_items.multiset(found) == expected


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Text(5), "observation_space has a part Text"),
        (spaces.Sequence(spaces.Discrete(3)), "observation_space has a part Sequence"),
        (spaces.Dict(a=spaces.Tuple((spaces.Text(5),))), "observation_space has a part Text"),
    ],
)
def test_spaces_without_arrays_are_refused(client, monkeypatch, space, text):
    monkeypatch.setitem(SPACES, "other", space)
    envs = SyncVectorEnv(makers("other"))
    with pytest.raises(errors.InvalidArgumentError, match=text):
        Recorder(envs, client, "replay")
    envs.close()


def test_actions_of_another_type_are_those_of_the_space(client):
    envs = SyncVectorEnv(makers("box"))
    recorder = Recorder(envs, client, "replay")
    recorder.reset(seed=1)
    recorder.step(np.zeros((NUM_ENVS, 2), np.float32))
    recorder.step([[0.0, 0.0]] * NUM_ENVS)
    recorder.close()
    assert {item["action"].dtype for item in scalar_items.stored(client)} == {np.dtype(np.float64)}


def test_spaces_make_a_signature(signed):
    leaves = {"observation": spaces.Box(-1, 1, (3,)), "action": spaces.Discrete(2)}
    with signed(leaves) as client:
        client.insert({"observation": np.zeros(3, np.float32), "action": 1}, {"replay": 1.0})
        assert client.server_info()["replay"].signature["observation"].dtype == np.float32
