# SPDX-License-Identifier: Apache-2.0
"""An observation is stored once, whatever refers to it."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from reverb.adapters.gymnasium import Recorder, Sequences, Transitions

NUM_ENVS = 4
STEPS = 60
FRAME = 84 * 84


class NoiseEnv(gymnasium.Env):
    """Frames that cannot be compressed; every tenth step ends the episode."""

    observation_space = spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self._random = np.random.default_rng(0)
        self._t = 0

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return self._frame(), {}

    def step(self, action):
        self._t += 1
        return self._frame(), 1.0, self._t == 10, False, {}

    def _frame(self):
        return self._random.integers(0, 256, (84, 84), np.uint8)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize(
    ("items", "frame_stack"),
    [
        (Transitions(), None),
        (Transitions(), 4),
        (Transitions(n_step=3), 4),
        (Sequences(5, stride=1, burn_in=2), None),
    ],
)
def test_frames_are_stored_once(client, mode, items, frame_stack):
    envs = SyncVectorEnv([NoiseEnv] * NUM_ENVS, autoreset_mode=mode)
    recorder = Recorder(envs, client, "replay", items, frame_stack)
    recorder.reset(seed=1)
    for _ in range(STEPS):
        recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.close()
    # With each episode of ten steps come eleven frames.
    num_frames = NUM_ENVS * STEPS * (1.1 if mode == AutoresetMode.SAME_STEP else 1.0)
    table = client.status().tables["replay"]
    assert num_frames * FRAME * 0.95 < table.bytes < num_frames * FRAME * 1.15


class FlatEnv(NoiseEnv):
    """Frames of one color."""

    def _frame(self):
        return np.full((84, 84), self._t, np.uint8)


@pytest.mark.parametrize("compression", ["auto", "none"])
def test_frames_are_compressed_as_the_client_says(client, compression):
    other = type(client)(client.server_address, compression=compression)
    recorder = Recorder(SyncVectorEnv([FlatEnv] * NUM_ENVS), other, "replay", Transitions())
    recorder.reset(seed=1)
    for _ in range(STEPS):
        recorder.step(np.zeros(NUM_ENVS, np.int64))
    recorder.close()
    is_raw = client.status().tables["replay"].bytes > NUM_ENVS * STEPS * FRAME * 0.9
    assert is_raw == (compression == "none")
