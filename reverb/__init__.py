# SPDX-License-Identifier: Apache-2.0
"""A replay database for reinforcement learning.

A `Server` holds `Table`s of items; a `Client` inserts and samples items. The parts that need
TensorFlow are loaded on first use; everything else works without it.
"""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from reverb import cc as cc
from reverb import checkpointers as checkpointers
from reverb import item_selectors as selectors
from reverb import libpybind as libpybind
from reverb import logging as logging
from reverb import pybind as pybind
from reverb import rate_limiters as rate_limiters
from reverb import schedules as schedules

# A program whose files are all open can load no module, and needs the status of its server then.
from reverb import server_status as server_status
from reverb import specs as specs
from reverb import structured_writer as structured
from reverb._batches.batches import batches
from reverb._batches.importance import MAX_PRIORITY, importance_weights, sequence_priority
from reverb._batches.iterator import BatchIterator
from reverb._batches.prefetching import PrefetchStats
from reverb._client.own_keys import key_of
from reverb._client.ragged import Ragged
from reverb._client.rollout_batch import RolloutBatch, split_balanced
from reverb._client.rollout_items import OpenItem
from reverb._client.where import Where
from reverb._client.window import Window
from reverb._rollouts.settings import Rollouts, RolloutsInfo
from reverb._server.limits import Limits
from reverb._server.store import Store
from reverb._server.table_change import UNCHANGED, TableChange
from reverb._server.tls import ClientTls, ServerTls
from reverb._writers.sequence import SequenceWriter
from reverb.client import Client, Writer
from reverb.errors import DeadlineExceededError, ReverbError
from reverb.platform import checkpointers_lib as _checkpointers_lib  # noqa: F401
from reverb.platform.default import checkpointers as _default_checkpointers  # noqa: F401
from reverb.replay_sample import BatchInfo, ReplayBatch, ReplaySample, SampleInfo, WindowInfo
from reverb.server import Server, Table
from reverb.trajectory_writer import BatchedTrajectoryWriter, TrajectoryColumn, TrajectoryWriter

if _TYPE_CHECKING:
    from reverb import aio as aio
    from reverb import cluster as cluster
    from reverb import datasets as datasets
    from reverb._batches.hindsight import hindsight as hindsight
    from reverb.pattern_dataset import PatternDataset as PatternDataset
    from reverb.pattern_dataset import pattern_dataset_with_info as pattern_dataset_with_info
    from reverb.tf_client import TFClient as TFClient
    from reverb.tf_ops.sequence_writer import TFSequenceWriter as TFSequenceWriter
    from reverb.timestep_dataset import TimestepDataset as TimestepDataset
    from reverb.trajectory_dataset import TrajectoryDataset as TrajectoryDataset

__version__ = "0.1.0"

__all__ = [
    "MAX_PRIORITY",
    "UNCHANGED",
    "BatchInfo",
    "BatchIterator",
    "BatchedTrajectoryWriter",
    "Client",
    "ClientTls",
    "DeadlineExceededError",
    "Limits",
    "OpenItem",
    "PrefetchStats",
    "Ragged",
    "ReplayBatch",
    "ReplaySample",
    "ReverbError",
    "RolloutBatch",
    "Rollouts",
    "RolloutsInfo",
    "SampleInfo",
    "SequenceWriter",
    "Server",
    "ServerTls",
    "Store",
    "Table",
    "TableChange",
    "TrajectoryColumn",
    "TrajectoryWriter",
    "Where",
    "Window",
    "WindowInfo",
    "Writer",
    "__version__",
    "batches",
    "checkpointers",
    "cluster",
    "hindsight",
    "importance_weights",
    "key_of",
    "logging",
    "rate_limiters",
    "schedules",
    "selectors",
    "sequence_priority",
    "specs",
    "split_balanced",
    "structured",
]

# Names that need TensorFlow, and their modules.
_TENSORFLOW_NAMES = {
    "PatternDataset": "pattern_dataset",
    "TFClient": "tf_client",
    "TFSequenceWriter": "tf_ops.sequence_writer",
    "TimestepDataset": "timestep_dataset",
    "TrajectoryDataset": "trajectory_dataset",
    "pattern_dataset_with_info": "pattern_dataset",
}
_TENSORFLOW_MODULES = frozenset({*_TENSORFLOW_NAMES.values(), "tf_ops"})

# All names that are imported on first use, and their modules.
_LAZY_NAMES = {**_TENSORFLOW_NAMES, "hindsight": "_batches.hindsight"}

# Other modules that are imported on first use, because they take long and few programs need them.
_RARE_MODULES = frozenset({"aio", "cluster", "datasets"})
_LAZY_MODULES = _TENSORFLOW_MODULES | _RARE_MODULES


# Modules that are attributes of the package once they are loaded, but that no program has to see:
# those of commands, and import paths of dm-reverb whose names the package itself has.
_NOT_SHOWN = {
    *("command", "core", "server_executable", "shown_text"),
    *("cc", "item_selectors", "libpybind", "platform", "pybind", "structured_writer"),
    *_TENSORFLOW_MODULES,
}


def __dir__() -> list[str]:
    names = {name for name in globals() if not name.startswith("_") or name == "__version__"}
    return sorted(names - _NOT_SHOWN | _RARE_MODULES | {"hindsight"})


def __getattr__(name: str) -> _Any:
    if name in _LAZY_MODULES:
        return _importlib.import_module(f"reverb.{name}")
    if name in _LAZY_NAMES:
        module = _importlib.import_module(f"reverb.{_LAZY_NAMES[name]}")
        return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
