# SPDX-License-Identifier: Apache-2.0
"""The observers, which a driver calls with every frame of its environment.

Replaces `tf_agents.replay_buffers.reverb_utils`. Needs neither TF-Agents nor TensorFlow.
"""

from reverb.adapters.tf_agents.batched_observer import ReverbBatchedTrajectoryObserver
from reverb.adapters.tf_agents.episode_observer import ReverbAddEpisodeObserver
from reverb.adapters.tf_agents.observer import ObserverClosedError, UnknownTableError
from reverb.adapters.tf_agents.trajectory_observer import (
    ReverbAddTrajectoryObserver,
    ReverbTrajectorySequenceObserver,
)

__all__ = [
    "ObserverClosedError",
    "ReverbAddEpisodeObserver",
    "ReverbAddTrajectoryObserver",
    "ReverbBatchedTrajectoryObserver",
    "ReverbTrajectorySequenceObserver",
    "UnknownTableError",
]
