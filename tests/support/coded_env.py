# SPDX-License-Identifier: Apache-2.0
"""An environment whose observations say where they are from, and that keeps a diary."""

import gymnasium
import numpy as np
from gymnasium import spaces

# Powers of two, so that sums of discounted rewards are exact.
DISCOUNT = 0.5


class Episode:
    """The events of an episode in one environment."""

    def __init__(self, first):
        self.observations = [first]
        self.actions = []
        self.rewards = []
        self.terminated = self.truncated = False

    def __len__(self):
        return len(self.actions)


class CodedEnv(gymnasium.Env):
    """Observations are `[env, episode, t]`. Episodes end at random, some in both ways at once.

    `diary` has every episode, begun by `reset`, as a list of what the calls gave. It knows nothing
    of vector environments and recorders.
    """

    def __init__(self, number, seed=0, p_end=0.15):
        self.observation_space = spaces.Box(-1, 2**31 - 1, (3,), np.int32)
        self.action_space = spaces.Discrete(1000)
        self.diary = []
        self._number = number
        self._random = np.random.default_rng([seed, number])
        self._p_end = p_end

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        observation = self.observe(len(self.diary), 0)
        self.diary.append(Episode(observation))
        return observation, {}

    def step(self, action):
        episode = self.diary[-1]
        assert not episode.terminated | episode.truncated, "the episode has ended"
        observation = self.observe(len(self.diary) - 1, len(episode) + 1)
        reward = float(self._random.integers(-8, 9)) / 4
        episode.terminated = bool(self._random.random() < self._p_end)
        episode.truncated = bool(self._random.random() < self._p_end)
        episode.actions.append(np.asarray(action).tolist())
        episode.rewards.append(reward)
        episode.observations.append(observation)
        info = {"t": len(episode)} if len(episode) % 3 else {}
        return observation, reward, episode.terminated, episode.truncated, info

    def observe(self, episode, t):
        return np.array([self._number, episode, t], np.int32)
