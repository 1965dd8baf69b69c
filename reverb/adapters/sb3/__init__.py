# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/adapters.md.
"""A replay buffer for Stable-Baselines3.

from stable_baselines3 import DQN
from reverb.adapters.sb3 import ReverbReplayBuffer

model = DQN("CnnPolicy", env, replay_buffer_class=ReverbReplayBuffer)
"""

from reverb.adapters.sb3.replay_buffer import ReverbReplayBuffer

__all__ = ["ReverbReplayBuffer"]
