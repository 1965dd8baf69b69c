# SPDX-License-Identifier: Apache-2.0
"""Updating priorities, in this process or in several others.

Run as a program this file is one updater process: its arguments are an address and `arrays` or
`dict`, and for every number that it reads it makes that many calls; see `actors.obey`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import actors
import numpy as np

BATCH = 256
_DIFFERENT_BATCHES = 16
_PRIORITIES_OF_EACH = 4


class Updater:
    """Updates the priorities of 256 items of a table in each call, others in turn.

    Attributes:
      size: Mean number of keys of a call; a table with few items has fewer different ones.
    """

    def __init__(self, client: Any, *, arrays: bool, table: str = "table") -> None:
        """Makes all updates in advance, so that only the calls are measured.

        Args:
          client: A `reverb.Client`.
          arrays: Updates with arrays, by the fastest public way: `Client.update_priorities`, or a
            dict that is made of them. Otherwise with dicts.
          table: Name of the table.
        """
        samples = list(client.sample(table, BATCH * _DIFFERENT_BATCHES, emit_timesteps=False))
        keys = np.asarray([sample.info.key for sample in samples], np.uint64)
        batches = [np.unique(part) for part in keys.reshape(_DIFFERENT_BATCHES, BATCH)]
        random = np.random.default_rng(0)
        # A learner seldom gives an item the priority that it has already.
        updates = [
            (batch, random.uniform(0.1, 10, len(batch)))
            for _ in range(_PRIORITIES_OF_EACH)
            for batch in batches
        ]
        self.size = sum(len(batch) for batch in batches) / len(batches)
        self._calls: list[Callable[[], None]] = [
            _call(client, table, *update, arrays=arrays) for update in updates
        ]
        self._next = itertools.cycle(self._calls)

    def update(self, calls: int) -> None:
        """Makes calls."""
        for call in itertools.islice(self._next, calls):
            call()


def _call(
    client: Any, table: str, keys: np.ndarray, priorities: np.ndarray, *, arrays: bool
) -> Callable[[], None]:
    def as_dict() -> dict[int, float]:
        return dict(zip(keys.tolist(), priorities.tolist(), strict=True))

    if not arrays:
        updates = as_dict()
        return lambda: client.mutate_priorities(table, updates=updates)
    if hasattr(client, "update_priorities"):
        return lambda: client.update_priorities(table, keys, priorities)
    return lambda: client.mutate_priorities(table, updates=as_dict())


def open_updaters(
    number: int, address: str, *, arrays: bool
) -> AbstractContextManager[actors.ActorProcesses]:
    """Starts processes of an `Updater` each, and stops them at the end."""
    command = [__file__, address, "arrays" if arrays else "dict"]
    return actors.open_programs([command] * number)


def _work() -> None:
    import reverb

    address, kind = sys.argv[1:]
    updater = Updater(reverb.Client(address), arrays=kind == "arrays")
    updater.update(500)
    actors.obey(updater.update)


if __name__ == "__main__":
    _work()
