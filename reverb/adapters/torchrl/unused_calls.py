# SPDX-License-Identifier: Apache-2.0
"""Calls of TorchRL's buffers that mean nothing for a table, or that it has no use for."""

import contextlib
from typing import Any

from reverb.adapters.torchrl.table_parts import refuse_part, refuse_write

__all__ = ["UnusedCalls"]


class UnusedCalls:
    """Those calls, in front of TorchRL's."""

    __setitem__ = set_ = set_at_ = update_ = write_all = refuse_write
    set_storage = set_sampler = set_writer = refuse_part

    def share(self, shared: bool = True) -> Any:
        """Returns the buffer: its table may always be shared."""
        self.shared = shared
        self._write_lock = contextlib.nullcontext()
        if shared and getattr(self, "_initialized", False):
            self._share_replay_buffer_transform()  # pyright: ignore[reportAttributeAccessIssue]
        return self

    def set_rng(self, generator: Any) -> None:
        """Of no effect: the server draws; see `generator` of the constructor."""
        self._rng = generator

    def _initialize_prioritized_sampler(self) -> None:
        """Nothing: the items of a table have their priorities."""
