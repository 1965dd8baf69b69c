# SPDX-License-Identifier: Apache-2.0
"""A replay database for reinforcement learning.

A `Server` holds `Table`s of items, a `Client` writes and samples them. The parts that need
TensorFlow are loaded when they are first touched; everything else works without it.
"""

from typing import Any as _Any

from reverb import cc as cc
from reverb import item_selectors as selectors
from reverb import pybind as pybind
from reverb import rate_limiters as rate_limiters
from reverb import specs as specs
from reverb import structured_writer as structured
from reverb.client import Client, Writer
from reverb.errors import DeadlineExceededError, ReverbError
from reverb.platform import checkpointers_lib as _checkpointers_lib  # noqa: F401
from reverb.platform.default import checkpointers as checkpointers
from reverb.replay_sample import ReplaySample, SampleInfo
from reverb.server import Server, Table
from reverb.trajectory_writer import BatchedTrajectoryWriter, TrajectoryColumn, TrajectoryWriter

__version__ = "0.1.0"

# Another old name of the compiled module.
libpybind = pybind

__all__ = [
    "BatchedTrajectoryWriter",
    "Client",
    "DeadlineExceededError",
    "ReplaySample",
    "ReverbError",
    "SampleInfo",
    "Server",
    "Table",
    "TrajectoryColumn",
    "TrajectoryWriter",
    "Writer",
    "__version__",
    "checkpointers",
    "rate_limiters",
    "selectors",
    "specs",
    "structured",
]

_TENSORFLOW_NAMES = frozenset(
    {"PatternDataset", "TFClient", "TimestepDataset", "TrajectoryDataset"}
)


def __getattr__(name: str) -> _Any:
    if name in _TENSORFLOW_NAMES:
        raise ImportError(
            f"reverb.{name} comes with the TensorFlow part of this package, which this version "
            "does not have yet"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
