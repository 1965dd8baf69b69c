# SPDX-License-Identifier: Apache-2.0
"""Clients that insert and sample without a pause, and tell what they have done.

Each value that they insert is a number of its own, so that each can be accounted for afterwards.
"""

from __future__ import annotations

import collections
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import numpy as np

import reverb
from support.waiting import DEADLINE_S

# Number of values that are confirmed or sampled at a time.
ROWS = 16
_VALUES_OF_A_CLIENT = 10**9
# After each round, so that others get the processor, too.
_PAUSE_S = 0.002


class LoadClients:
    """A thread and a client for each role: `insert_batch:replay,queue` or `sample_batch:queue`.

    Attributes:
      confirmed: Confirmed items of each table.
      sampled: Sampled items of each table.
      errors: Errors of the clients.
      rounds: How often each role has gone round.
    """

    def __init__(self, addresses: list[str], roles: list[str], number: int = 0) -> None:
        """Starts the threads.

        Args:
          addresses: The clients have these addresses in turn.
          roles: Names of functions of this module, each with its tables.
          number: Number of these clients, if there are others.
        """
        self.confirmed: dict[str, list[int]] = collections.defaultdict(list)
        self.sampled: dict[str, list[int]] = collections.defaultdict(list)
        self.errors: list[str] = []
        self.rounds = dict.fromkeys(roles, 0)
        self._stopped = threading.Event()
        self._threads = []
        for index, (role, address) in enumerate(zip(roles, itertools.cycle(addresses))):
            first = (1 + index + 100 * number) * _VALUES_OF_A_CLIENT
            thread = threading.Thread(target=self._run, args=(role, address, first), daemon=True)
            self._threads.append((role, thread))
            thread.start()

    def stop(self) -> None:
        """Ends them in good order: writers flush. What does not end is an error."""
        self._stopped.set()
        deadline = time.monotonic() + DEADLINE_S
        for role, thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                frame = sys._current_frames()[thread.ident or 0]
                self.errors.append(f"{role} hangs: {''.join(traceback.format_stack(frame))}")

    def _run(self, role: str, address: str, first: int) -> None:
        name, _, tables = role.partition(":")
        try:
            rounds = ROLES[name](reverb.Client(address), self, tables.split(","), first)
            for _ in rounds:
                self.rounds[role] += 1
                time.sleep(_PAUSE_S)
        except BaseException:
            self.errors.append(f"{role}: {traceback.format_exc()}")

    def batches(self, first: int) -> Iterator[np.ndarray]:
        """New values, until the end."""
        for start in itertools.count(first, ROWS):
            if self._stopped.is_set():
                return
            yield np.arange(start, start + ROWS)

    def confirm(self, tables: list[str], values: np.ndarray) -> None:
        """Keeps values that are confirmed."""
        for table in tables:
            self.confirmed[table] += values.tolist()

    def until_the_end(self) -> Iterator[None]:
        """Goes round until the end; a timeout is no error."""
        while not self._stopped.is_set():
            yield


Role = Callable[[reverb.Client, LoadClients, list[str], int], Iterator[None]]


def _insert(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    for values in load.batches(first):
        client.insert([values[0]], dict.fromkeys(tables, 1.0))
        load.confirm(tables, values[:1])
        yield


def _insert_batch(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    for values in load.batches(first):
        client.insert_batch([values], dict.fromkeys(tables, 1.0))
        load.confirm(tables, values)
        yield


def _trajectory_writer(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    with client.trajectory_writer(2) as writer:
        for values in load.batches(first):
            _append(writer, tables, values)
            writer.flush()
            load.confirm(tables, values)
            yield


def _late_flush(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    """A writer that runs ahead, and flushes at the end of its episodes only."""
    with client.trajectory_writer(1) as writer:
        written: list[np.ndarray] = []
        for values in load.batches(first):
            _append(writer, tables, values)
            written.append(values)
            if len(written) == 20:
                writer.end_episode()
                load.confirm(tables, np.concatenate(written))
                written.clear()
            yield
        writer.flush()
        if written:
            load.confirm(tables, np.concatenate(written))


def _new_writers(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    for values in load.batches(first):
        with client.trajectory_writer(1) as writer:
            _append(writer, tables, values)
        load.confirm(tables, values)
        yield


def _append(writer: reverb.TrajectoryWriter, tables: list[str], values: np.ndarray) -> None:
    for value in values:
        writer.append([value])
        for table in tables:
            writer.create_item(table, 1.0, [writer.history[0][-1:]])


def _batched_writer(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    with client.batched_trajectory_writer(ROWS, 1) as writer:
        for values in load.batches(first):
            writer.append([values])
            for table in tables:
                writer.create_items(table, 1.0, [writer.history[0][-1:]])
            writer.flush()
            load.confirm(tables, values)
            yield


def _sequence_writer(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    with client.sequence_writer(tables, 1) as writer:
        for values in load.batches(first):
            for value in values:
                writer.append([value])
            writer.flush()
            load.confirm(tables, values)
            yield


def _legacy_writer(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    with client.writer(1, chunk_length=1) as writer:
        for values in load.batches(first):
            for value in values:
                writer.append([value])
                for table in tables:
                    writer.create_item(table, 1, 1.0)
            writer.flush()
            load.confirm(tables, values)
            yield


def _sample(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    (table,) = tables
    for _ in load.until_the_end():
        try:
            for steps in client.sample(table, 3 * ROWS, timeout_ms=50):
                load.sampled[table] += [int(step.data[0]) for step in steps]
        except reverb.DeadlineExceededError:
            pass
        yield


def _sample_one(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    (table,) = tables
    for _ in load.until_the_end():
        try:
            steps = next(client.sample(table, timeout_ms=50))
            load.sampled[table].append(int(steps[0].data[0]))
        except reverb.DeadlineExceededError:
            pass
        yield


def _sample_batch(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    (table,) = tables
    for _ in load.until_the_end():
        try:
            batch = client.sample_batch(table, ROWS, timeout_ms=50)
            load.sampled[table] += batch.data[0].ravel().tolist()
        except reverb.DeadlineExceededError:
            pass
        yield


def _learner(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    """Waits as long as it takes. Some of the keys may be unknown to the server that it asks."""
    (table,) = tables
    priorities = np.linspace(0.0, 2.0, 4 * ROWS)
    for _ in load.until_the_end():
        batch = client.sample_batch(table, 4 * ROWS)
        client.update_priorities(table, batch.info.key, priorities)
        yield


def _one_by_one(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    (table,) = tables
    for _ in load.until_the_end():
        for sample in client.sample(table, ROWS, emit_timesteps=False):
            client.mutate_priorities(table, {sample.info.key: 1.5})
        assert table in client.server_info()
        yield


def _deleter(client: reverb.Client, load: LoadClients, tables: list[str], first: int):
    (table,) = tables
    for _ in load.until_the_end():
        keys = client.sample_batch(table, 4 * ROWS).info.key
        client.mutate_priorities(table, deletes=keys[:2].tolist())
        yield


ROLES: dict[str, Role] = {
    "insert": _insert,
    "insert_batch": _insert_batch,
    "trajectory_writer": _trajectory_writer,
    "late_flush": _late_flush,
    "new_writers": _new_writers,
    "batched_writer": _batched_writer,
    "sequence_writer": _sequence_writer,
    "legacy_writer": _legacy_writer,
    "sample": _sample,
    "sample_one": _sample_one,
    "sample_batch": _sample_batch,
    "learner": _learner,
    "one_by_one": _one_by_one,
    "deleter": _deleter,
}
