# SPDX-License-Identifier: Apache-2.0
"""Calls of TorchRL's buffers that make no sense for a table, or that it does not need."""

import contextlib
from typing import Any

from reverb.adapters.torchrl.library import torchrl_data
from reverb.adapters.torchrl.table_parts import refuse_part, refuse_write

__all__ = ["UnusedCalls"]


class UnusedCalls(torchrl_data.TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` that refuses or ignores such calls."""

    __setitem__ = set_ = set_at_ = update_ = write_all = refuse_write
    set_storage = set_sampler = set_writer = refuse_part

    def share(self, shared: bool = True) -> Any:
        """Returns the buffer: its table may always be shared."""
        self.shared = shared
        self._write_lock = contextlib.nullcontext()
        if shared and getattr(self, "_initialized", False):
            self._share_replay_buffer_transform()
        return self

    def set_rng(self, generator: Any) -> None:
        """Ignored: the server draws; see `generator` of the constructor."""
        self._rng = generator

    def _initialize_prioritized_sampler(self) -> None:
        """Does nothing: the items of a table have their priorities."""
