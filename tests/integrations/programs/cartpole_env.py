# SPDX-License-Identifier: Apache-2.0
"""Pole balancing in plain NumPy, as an environment of TF-Agents and as one of dm_env."""

import math

import numpy as np

GRAVITY, CART_MASS, POLE_MASS, POLE_HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
FORCE, SECONDS_A_STEP = 10.0, 0.02
X_LIMIT, ANGLE_LIMIT = 2.4, 12.0 * math.pi / 180.0


class CartPole:
    """State: x, its speed, angle, its speed. Reward 1 a step until the pole falls."""

    def __init__(self, seed=0, max_steps=200):
        self._random = np.random.RandomState(seed)
        self._max_steps = max_steps
        self.reset()

    def reset(self):
        self._state = self._random.uniform(-0.05, 0.05, size=4)
        self._steps = 0
        return self._state.astype(np.float32)

    def step(self, action):
        """Returns the observation, the reward, whether the pole fell and whether time is up."""
        _, x_speed, angle, angle_speed = self._state
        force = FORCE if int(action) == 1 else -FORCE
        mass = CART_MASS + POLE_MASS
        sin, cos = math.sin(angle), math.cos(angle)
        push = (force + POLE_MASS * POLE_HALF_LENGTH * angle_speed * angle_speed * sin) / mass
        turn = (GRAVITY * sin - cos * push) / (
            POLE_HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos * cos / mass)
        )
        speedup = push - POLE_MASS * POLE_HALF_LENGTH * turn * cos / mass
        slopes = np.array([x_speed, speedup, angle_speed, turn])
        self._state = self._state + SECONDS_A_STEP * slopes
        self._steps += 1
        fell = abs(self._state[0]) > X_LIMIT or abs(self._state[2]) > ANGLE_LIMIT
        return self._state.astype(np.float32), 1.0, fell, self._steps >= self._max_steps


def make_tf_agents_env(seed=0, max_steps=200):
    from tf_agents.environments import py_environment
    from tf_agents.specs import array_spec
    from tf_agents.trajectories import time_step as ts

    class Environment(py_environment.PyEnvironment):
        def __init__(self):
            super().__init__()
            self._cart_pole = CartPole(seed, max_steps)
            self._observation_spec = array_spec.ArraySpec((4,), np.float32, "observation")
            self._action_spec = array_spec.BoundedArraySpec((), np.int64, 0, 1, "action")

        def observation_spec(self):
            return self._observation_spec

        def action_spec(self):
            return self._action_spec

        def _reset(self):
            return ts.restart(self._cart_pole.reset())

        def _step(self, action):
            if self._current_time_step is None or self._current_time_step.is_last():
                return self.reset()
            observation, reward, fell, time_is_up = self._cart_pole.step(action)
            if fell:
                return ts.termination(observation, reward)
            if time_is_up:
                return ts.truncation(observation, reward)
            return ts.transition(observation, reward)

    return Environment()


def make_dm_env(seed=0, max_steps=200):
    import dm_env
    from dm_env import specs

    class Environment(dm_env.Environment):
        def __init__(self):
            self._cart_pole = CartPole(seed, max_steps)
            self._needs_reset = True

        def reset(self):
            self._needs_reset = False
            return dm_env.restart(self._cart_pole.reset())

        def step(self, action):
            if self._needs_reset:
                return self.reset()
            observation, reward, fell, time_is_up = self._cart_pole.step(action)
            self._needs_reset = fell or time_is_up
            return dm_env.TimeStep(
                dm_env.StepType.LAST if self._needs_reset else dm_env.StepType.MID,
                np.float32(reward),
                np.float32(0.0 if fell else 1.0),
                observation,
            )

        def observation_spec(self):
            return specs.Array((4,), np.float32, "observation")

        def action_spec(self):
            return specs.DiscreteArray(2, dtype=np.int32, name="action")

        def reward_spec(self):
            return specs.Array((), np.float32, "reward")

        def discount_spec(self):
            return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    return Environment()
