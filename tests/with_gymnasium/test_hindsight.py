# SPDX-License-Identifier: Apache-2.0
"""Hindsight over the episodes that a recorder writes of environments with goals."""

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import reverb
from reverb.adapters.gymnasium import EnvRecorder, Episodes, Recorder, signature

MAX_LENGTH = 6


class Walk(gymnasium.Env):
    """A walk on a line. No walk reaches its goal, and each place belongs to one episode."""

    _numbers = itertools.count(1)  # Shared, so that no two episodes meet.

    def __init__(self):
        place = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.observation_space = spaces.Dict(
            observation=spaces.Box(-np.inf, np.inf, (2,), np.float32),
            achieved_goal=place,
            desired_goal=place,
        )
        self.action_space = spaces.Discrete(3, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._at = 1000.0 * next(self._numbers)
        self._left = int(self.np_random.integers(1, MAX_LENGTH + 1))
        return self._observation(), {}

    def step(self, action):
        self._at += action
        self._left -= 1
        reward = self.compute_reward(np.array([self._at]), np.array([-self._at]), {})
        return self._observation(), reward, False, self._left == 0, {"speed": int(action)}

    def compute_reward(self, achieved, goal, info):
        """The function that environments of Gymnasium-Robotics have."""
        return -(np.linalg.norm(achieved - goal, axis=-1) > 0.5).astype(np.float32)

    def _observation(self):
        return {
            "observation": np.array([self._at, 1.0], np.float32),
            "achieved_goal": np.array([self._at]),
            "desired_goal": np.array([-1.0 - self._at // 1000]),
        }


def record_one(client, items):
    env = EnvRecorder(Walk(), client, "replay", items, keep_infos={"speed": 0})
    for episode in range(20):
        env.reset(seed=episode)
        is_over = False
        while not is_over:
            is_over = env.step(env.action_space.sample())[3]
    env.close()


def record_several(client, items):
    envs = SyncVectorEnv([Walk] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    recorder = Recorder(envs, client, "replay", items, keep_infos={"speed": 0})
    recorder.reset(seed=1)
    for _ in range(60):
        recorder.step(recorder.action_space.sample())
    recorder.close()


@pytest.mark.parametrize("record", [record_one, record_several])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_are_places_of_the_episode(signed, record, strategy):
    items, env = Episodes(MAX_LENGTH), Walk()
    infos = {"speed": reverb.specs.TensorSpec([None], np.int64)}
    with signed({**signature(env, items), **infos}) as client:
        record(client, items)
        episodes = [
            it.data["next_observation"]["achieved_goal"][:, 0]
            for it in client.scan("replay", unpack_as_table_signature=True)
        ]
        batch = client.sample_batch("replay", 64, ragged="packed", unpack_as_table_signature=True)
    assert len({len(episode) for episode in episodes}) > 1
    found = reverb.hindsight(
        batch, 500, reward=env.compute_reward, strategy=strategy, ratio=0.6, seed=1
    )
    after, goals = (found["next_observation"][it] for it in ("achieved_goal", "desired_goal"))
    before = found["observation"]
    np.testing.assert_array_equal(before["achieved_goal"][:, 0] + found["action"], after[:, 0])
    np.testing.assert_array_equal(found["speed"], found["action"])
    np.testing.assert_array_equal(before["desired_goal"][:300], goals[:300])
    np.testing.assert_array_equal(
        before["desired_goal"][300:], -1 - before["observation"][300:, :1] // 1000
    )
    assert (found["reward"][300:] == -1).all()
    np.testing.assert_array_equal(found["reward"][:300] == 0, (after == goals)[:300, 0])
    for place, goal in zip(after[:300, 0], goals[:300, 0], strict=True):
        (places,) = (it for it in episodes if place in it)
        allowed = {"future": places[places >= place], "final": places[-1:], "episode": places}
        assert goal in allowed[strategy]
