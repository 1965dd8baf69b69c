# SPDX-License-Identifier: Apache-2.0
"""A pole on a cart, to be kept upright by pushing the cart left or right."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

# In metres, kilograms, seconds and radians, as in Barto, Sutton & Anderson (1983).
GRAVITY = 9.8
CART_MASS, POLE_MASS = 1.0, 0.1
HALF_LENGTH = 0.5  # of the pole
FORCE = 10.0
TIME_STEP = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = math.radians(12.0)


class CartPole:
    """The same task as CartPole-v1 of Gymnasium: a reward of 1 for each step, 500 steps at most."""

    def __init__(self, seed: int, max_steps: int = 500) -> None:
        """Call `reset` before the first step."""
        self._rng = np.random.default_rng(seed)
        self._max_steps = max_steps
        self._state = (0.0, 0.0, 0.0, 0.0)
        self._num_steps = 0

    def reset(self) -> np.ndarray:
        """Starts an episode near the upright position. Returns the observation, float32 [4]."""
        self._state = tuple(self._rng.uniform(-0.05, 0.05, size=4))
        self._num_steps = 0
        return self._observation()

    def step(self, action: int) -> tuple[np.ndarray, bool, bool]:
        """Pushes left (0) or right (1).

        Returns:
          The observation, whether the pole fell or the cart left the track, and whether the time
          of the episode is up.
        """
        position, velocity, angle, spin = self._state
        force = FORCE if action == 1 else -FORCE
        mass = CART_MASS + POLE_MASS
        sine, cosine = math.sin(angle), math.cos(angle)
        push = (force + POLE_MASS * HALF_LENGTH * spin * spin * sine) / mass
        spin_up = (GRAVITY * sine - cosine * push) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine * cosine / mass)
        )
        acceleration = push - POLE_MASS * HALF_LENGTH * spin_up * cosine / mass
        self._state = (
            position + TIME_STEP * velocity,
            velocity + TIME_STEP * acceleration,
            angle + TIME_STEP * spin,
            spin + TIME_STEP * spin_up,
        )
        self._num_steps += 1
        fell = abs(self._state[0]) > MAX_POSITION or abs(self._state[2]) > MAX_ANGLE
        return self._observation(), fell, self._num_steps >= self._max_steps

    def _observation(self) -> np.ndarray:
        """Position, velocity, angle and spin."""
        return np.array(self._state, np.float32)


def mean_return(
    choose_actions: Callable[[np.ndarray], np.ndarray], num_episodes: int, seed: int
) -> float:
    """Plays episodes in parallel, with one call of the policy per step.

    Args:
      choose_actions: Returns actions [B] for observations [B, 4].
      num_episodes: B. Episodes that have ended keep their row and are not continued.
      seed: Seed of the first episode; the others have the next seeds.

    Returns:
      The mean of the returns.
    """
    games = [CartPole(seed + index) for index in range(num_episodes)]
    observations = np.stack([game.reset() for game in games])
    returns = np.zeros(num_episodes)
    playing = np.ones(num_episodes, bool)
    while playing.any():
        actions = choose_actions(observations)
        for index in np.flatnonzero(playing):
            observations[index], fell, time_is_up = games[index].step(int(actions[index]))
            returns[index] += 1.0
            playing[index] = not (fell or time_is_up)
    return float(returns.mean())
