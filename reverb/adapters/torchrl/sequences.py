# SPDX-License-Identifier: Apache-2.0
"""Writes sequences of consecutive steps as items, whose steps are stored once."""

import collections
import os
import threading
from typing import Any

import numpy as np

from reverb.adapters.torchrl.fields import columns_of
from reverb.adapters.torchrl.library import torch
from reverb.adapters.torchrl.priorities import Priorities
from reverb.adapters.torchrl.sequence_keys import SequenceKeys
from reverb.adapters.torchrl.table_access import TableAccess

__all__ = ["SequenceWriter"]


class SequenceWriter:
    """Makes an item of every `length` consecutive steps of an episode.

    Row `i` of `[N, T]` data continues row `i` of the data before, until its episode ends.

    Args:
      access: The table.
      length: Number of steps of an item.
      keys: Finds the ends of episodes.
      priorities: Reduces the priorities of steps to one for an item.
    """

    def __init__(
        self,
        access: TableAccess,
        length: int,
        keys: SequenceKeys,
        priorities: Priorities,
    ) -> None:
        self._access = access
        self._length = length
        self._keys = keys
        self._priorities = priorities
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._writer: Any = None
        # The process and the number of environments of the writer.
        self._made_for: tuple[int, int] | None = None
        # Trajectories of the last step `[N, ...]`, priorities of each of the last `length` steps.
        self._last_ids: Any = None
        self._last_values: collections.deque[Any] = collections.deque(maxlen=length)

    def write(self, data: Any, values: Any = None) -> None:
        """Writes a TensorDict `[T]`, or `[..., T]` of several environments; waits for the server.

        Args:
          data: The steps.
          values: Priorities of the steps, `[..., T, ...]`; `None`: they have none.

        Raises:
          InvalidArgumentError: If the fields are not those of the table, or if the data has no
            field that marks the ends of episodes.
        """
        if 0 in data.shape:
            return
        num_steps = data.shape[-1]
        # [T, N]
        data = data.reshape(-1, num_steps).transpose(0, 1)
        if values is not None:
            # [T, N, ...]
            values = values.reshape(data.shape[1], num_steps, -1).transpose(0, 1)
        fields, columns = columns_of(data)
        columns = self._access.fields.in_order(fields.of_steps(), columns)
        boundaries = self._found(data)
        with self._access.naming_table(), self._lock_of_process():
            try:
                self._write(boundaries, columns, values)
            except BaseException:
                # It is unknown which steps were written, so the next ones do not continue them.
                self._writer, self._made_for = None, None
                raise
        self._access.fields.confirm()

    def _found(self, data: Any) -> tuple[Any, Any]:
        """Fields of `[T, N]` data that mark the episodes."""
        return self._keys.find(data)

    def _write(self, boundaries: tuple[Any, Any], columns: list[Any], values: Any) -> None:
        """Writes steps `[T, N]`."""
        num_steps, num_envs = columns[0].shape[:2]
        # An item begins at each step.
        self._access.expect_items(sum(it.nbytes for it in columns) / (num_steps * num_envs))
        writer = self._writer_of(num_envs)
        begins, ends = self._moves(*boundaries)
        window = None
        if values is None:
            self._last_values.clear()
        for step in range(num_steps):
            if begins[step].any():
                writer.end_episode(begins[step])
            writer.append([column[step] for column in columns])
            if values is not None:
                self._last_values.append(values[step])
                window = torch.stack(tuple(self._last_values)).transpose(0, 1)
            priority = self._priorities.of_items(window, num_envs)
            items = [column[-self._length :] for column in writer.history]
            writer.create_items(self._access.table, priority, items)
            if ends[step].any():
                writer.end_episode(ends[step])
        writer.flush()

    def drop(self) -> None:
        """Drops the episodes so far; the next steps do not continue them."""
        with self._lock_of_process():
            self.close()

    def close(self) -> None:
        """Closes the writer."""
        if self._writer is not None and self._made_for and self._made_for[0] == os.getpid():
            self._writer.close(flush=False)
        self._writer, self._made_for = None, None

    def _writer_of(self, num_envs: int) -> Any:
        # Raises an error for a closed buffer, and for a forked one whose items were replaced.
        client = self._access.client
        if self._made_for != (os.getpid(), num_envs):
            self.close()
            self._writer = client.batched_trajectory_writer(num_envs, self._length)
            self._made_for = (os.getpid(), num_envs)
            self._last_ids = None
            self._last_values.clear()
        return self._writer

    def _moves(self, ids: Any, ends: Any) -> tuple[Any, Any]:
        """Whether an episode begins before a step, and whether it ends with it, bool `[T, N]`."""
        if ends is not None:
            ends = ends.cpu().numpy()
        if ids is None:
            return np.zeros_like(ends), ends
        before = ids[:1] if self._last_ids is None else self._last_ids[None]
        begins = (ids != torch.cat([before, ids[:-1]])).any(-1).cpu().numpy()
        self._last_ids = ids[-1].clone()
        return begins, np.zeros_like(begins) if ends is None else ends

    def _lock_of_process(self) -> threading.Lock:
        """A lock, so that threads write one after another; a forked process gets a new one."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.Lock()
        return self._lock
