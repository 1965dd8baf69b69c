# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/asyncio.md.
"""The client for asyncio programs: `reverb.aio.Client`, whose calls are awaited.

A call that waits is a future on the core's threads. It costs no thread, however many wait.
"""

from reverb.aio.batch_iterator import BatchIterator
from reverb.aio.batch_sampler import BatchSampler
from reverb.aio.client import Client
from reverb.aio.sample_iterator import SampleIterator
from reverb.aio.sequence_writer import SequenceWriter
from reverb.aio.trajectory_writer import BatchedTrajectoryWriter, TrajectoryWriter

__all__ = [
    "BatchIterator",
    "BatchSampler",
    "BatchedTrajectoryWriter",
    "Client",
    "SampleIterator",
    "SequenceWriter",
    "TrajectoryWriter",
]
