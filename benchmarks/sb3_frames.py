# SPDX-License-Identifier: Apache-2.0
"""Measures how many bytes a transition of Pong takes in the buffer for Stable-Baselines3.

    pip install ale-py opencv-python-headless
    python benchmarks/sb3_frames.py
    python benchmarks/sb3_frames.py --steps 20000 --envs 4

Random play with the wrappers that Stable-Baselines3 has for Atari: frames of 84 x 84 pixels, four
of them stacked. Its own buffer keeps every observation and every next observation, 2 x 4 x 84 x 84
= 56,448 bytes of pixels a transition. Ours detects stacks by comparing frames. The size of its
table is the server's count of compressed chunks and items; the process takes more, because the
allocator keeps freed memory.
"""

from __future__ import annotations

import argparse

import ale_py
import gymnasium
import numpy as np
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from reverb import testing
from reverb.adapters.sb3 import ReverbReplayBuffer

# Bytes of an observation of 84 x 84 x 4 and of the next one in the library's buffer.
THEIR_PIXELS = 2 * 4 * 84 * 84


def main() -> None:
    """Prints one line for each number of steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=5_000, help="of each environment")
    parser.add_argument("--envs", type=int, default=1)
    parser.add_argument("--game", default="ALE/Pong-v5")
    arguments = parser.parse_args()
    gymnasium.register_envs(ale_py)
    count, num_bytes = measure(arguments.game, arguments.envs, arguments.steps)
    ours = num_bytes / count
    print(f"{count} transitions of {arguments.game}, {arguments.envs} environment(s)")
    print(f"our table    {ours:8,.0f} bytes a transition")
    print(f"their pixels {THEIR_PIXELS:8,} bytes a transition, {THEIR_PIXELS / ours:.1f} x ours")


def measure(game: str, num_envs: int, steps: int) -> tuple[int, int]:
    """Returns how many transitions the table has, and its bytes."""
    # The game itself skips no frames: the wrapper does.
    options = {"frameskip": 1, "repeat_action_probability": 0.0}
    envs = VecFrameStack(make_atari_env(game, num_envs, seed=1, env_kwargs=options), 4)
    # The library gives its buffers images with the channels first, as its networks want them.
    space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    size = steps * num_envs
    with testing.server([testing.table("replay", max_size=size)]) as client:
        buffer = ReverbReplayBuffer(
            size, space, envs.action_space, n_envs=num_envs, server=client.server_address
        )
        random = np.random.default_rng(0)
        observations = np.moveaxis(envs.reset(), -1, 1)
        for _ in range(steps):
            actions = random.integers(0, envs.action_space.n, (num_envs, 1))
            following, rewards, dones, infos = envs.step(actions[:, 0])
            following = np.moveaxis(following, -1, 1)
            ends = following.copy()
            for env in np.flatnonzero(dones):
                ends[env] = np.moveaxis(infos[env]["terminal_observation"], -1, 0)
            buffer.add(observations, ends, actions, rewards, dones, infos)
            observations = following
        buffer.flush()
        found = client.server_info()["replay"].current_size
        num_bytes = client.status().tables["replay"].bytes
        buffer.close()
        envs.close()
    return found, num_bytes


if __name__ == "__main__":
    main()
