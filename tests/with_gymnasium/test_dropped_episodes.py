# SPDX-License-Identifier: Apache-2.0
"""Episodes that are shorter than a sequence: counted, and told once."""

import gymnasium
import numpy as np
import pytest

import reverb
from reverb.adapters.gymnasium import EnvRecorder, Recorder, Sequences


class Short(gymnasium.Env):
    """An environment whose episodes have the given numbers of steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, lengths):
        self._lengths = list(lengths)
        self._left = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = self._lengths.pop(0) if self._lengths else 9
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._left -= 1
        return np.zeros(2, np.float32), 0.0, self._left == 0, False, {}


@pytest.fixture
def warnings(caplog):
    caplog.set_level("WARNING", "reverb")
    return lambda: [it.getMessage() for it in caplog.records if "is in no item" in it.getMessage()]


TEXT = (
    "an episode of 2 steps is in no item, because a sequence has burn_in + length = 4 steps. "
    "Such episodes are counted in num_dropped_episodes of the recorder, and not logged again; "
    'short_episodes="keep" makes shorter items of them'
)


def episodes(env, number):
    for _ in range(number):
        env.reset()
        has_ended = False
        while not has_ended:
            _, _, has_ended, _, _ = env.step(0)


def test_the_first_one_is_told_and_all_are_counted(client, warnings):
    env = EnvRecorder(Short([5, 2, 3, 4, 1]), client, "replay", Sequences(3, burn_in=1))
    episodes(env, 1)
    assert (env.num_dropped_episodes, warnings()) == (0, [])
    episodes(env, 4)
    assert (env.num_dropped_episodes, warnings()) == (3, [TEXT])
    env.close()


def test_of_several_environments(client, warnings):
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    makers = [lambda: Short([2] * 3), lambda: Short([2] * 3)]
    envs = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    envs = Recorder(envs, client, "replay", Sequences(4))
    envs.reset()
    for _ in range(4):
        envs.step(np.array([0, 1]))
    assert (envs.num_dropped_episodes, warnings()) == (4, [TEXT])
    envs.close()


def test_what_is_kept_is_not_told(client, warnings):
    items = Sequences(4, short_episodes="keep")
    env = EnvRecorder(Short([2, 3]), client, "replay", items)
    episodes(env, 2)
    env.flush()
    assert (env.num_dropped_episodes, warnings()) == (0, [])
    assert reverb.Client(client.server_address).size("replay") == 2
    env.close()
