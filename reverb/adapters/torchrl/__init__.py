# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/adapters.md.
"""A replay buffer for TorchRL.

from reverb.adapters.torchrl import ReverbReplayBuffer

buffer = ReverbReplayBuffer("localhost:8000", table="replay", batch_size=256)
"""

from reverb.adapters.torchrl.replay_buffer import ReverbReplayBuffer
from reverb.adapters.torchrl.table_access import tables

__all__ = ["ReverbReplayBuffer", "tables"]
