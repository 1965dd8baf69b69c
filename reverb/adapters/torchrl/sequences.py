# SPDX-License-Identifier: Apache-2.0
"""Sequences of consecutive steps as items, whose steps are stored once."""

import os
from typing import Any

import numpy as np

from reverb.adapters.torchrl.fields import Fields, as_values
from reverb.adapters.torchrl.library import torch
from reverb.adapters.torchrl.table_access import TableAccess

__all__ = ["SequenceWriter"]

_ENDS = (("next", "done"), ("next", "terminated"), ("next", "truncated"))
_TRAJECTORY = ("collector", "traj_ids")


class SequenceWriter:
    """Makes an item of every `length` consecutive steps of an episode.

    Row `i` of `[N, T]` data goes on with row `i` of the data before, until the episode ends, or
    until its `("collector", "traj_ids")` changes.
    """

    def __init__(self, access: TableAccess, length: int, priority: Any) -> None:
        self._access = access
        self._length = length
        self._priority = priority
        self._writer: Any = None
        # Writers are of one process and of one number of lanes.
        self._made_for: tuple[int, int] | None = None
        self._last_ids: Any = None

    def write(self, data: Any) -> None:
        """Writes a TensorDict `[T]`, or `[..., T]` with that many lanes, and waits for the server.

        Raises:
          InvalidArgumentError: If the fields are not those of the table.
        """
        if data.ndim == 0:
            data = data.unsqueeze(0)
        num_steps = data.shape[-1]
        # [T, N]
        data = data.reshape(-1, num_steps).transpose(0, 1)
        fields, tensors = Fields.of(data)
        self._access.check_fields(fields.of_steps())
        with self._access.telling_table():
            self._write(data, tensors)

    def _write(self, data: Any, tensors: list[Any]) -> None:
        """Writes steps `[T, N]`."""
        num_steps, num_lanes = data.shape
        writer = self._writer_of(num_lanes)
        ends, ids = _ends(data), data.get(_TRAJECTORY, None)
        if ids is not None:
            ids = ids.reshape(num_steps, num_lanes, -1)[..., 0].cpu().numpy()
        columns = [as_values(tensor) for tensor in tensors]
        for step in range(num_steps):
            if ids is not None:
                if self._last_ids is not None and (moved := ids[step] != self._last_ids).any():
                    writer.end_episode(moved)
                self._last_ids = ids[step]
            writer.append([column[step] for column in columns])
            items = [column[-self._length :] for column in writer.history]
            writer.create_items(self._access.table, self._priority, items)
            if ends[step].any():
                writer.end_episode(ends[step])
        writer.flush()

    def close(self) -> None:
        """Closes the writer."""
        if self._writer is not None and self._made_for and self._made_for[0] == os.getpid():
            self._writer.close()
        self._writer = None

    def _writer_of(self, num_lanes: int) -> Any:
        if self._made_for != (os.getpid(), num_lanes):
            self.close()
            self._writer = self._access.client.batched_trajectory_writer(num_lanes, self._length)
            self._made_for = (os.getpid(), num_lanes)
            self._last_ids = None
        return self._writer


def _ends(data: Any) -> np.ndarray[Any, Any]:
    """Whether the episode ends with a step, bool `[T, N]`."""
    ends = np.zeros(tuple(data.shape), np.bool_)
    for path in _ENDS:
        flag = data.get(path, None)
        if isinstance(flag, torch.Tensor):
            ends |= flag.reshape(*data.shape, -1).any(-1).cpu().numpy()
    return ends
