# SPDX-License-Identifier: Apache-2.0
"""What clients do to a server until it is killed, as a program that says what was confirmed to it.

Each kind of work is a sequence of numbered steps, each made when the one before was confirmed. So
the tables of a server that comes back must be those after a first part of each sequence.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import reverb

BATCH = 16
SHAPE = (84, 84)
NUM_UPDATED = 40
# Items of the first two tables, which the oldest leave.
MAX_SIZE = 4000
# Less than the frames of a table, so that payloads leave memory.
MEMORY = "24MiB"


def frame(number: int) -> np.ndarray:
    """The data of an item: noise, which does not compress."""
    return np.random.default_rng(number).integers(0, 256, SHAPE, np.uint8)


def number_of(item: Any) -> int:
    """The number of an item of any table."""
    return int(np.asarray(item.data[-1]).reshape(-1)[0])


def tables(max_size: int = MAX_SIZE) -> list[reverb.Table]:
    """The tables of the server: two that get the same, one of updates, of deletes, and a queue."""
    selectors = reverb.selectors

    def table(name: str, sampler: object, max_size: int) -> reverb.Table:
        limiter = reverb.rate_limiters.MinSize(1)
        return reverb.Table(name, sampler, selectors.Fifo(), max_size, limiter)

    return [
        table("first", selectors.Uniform(), max_size),
        table("second", selectors.Uniform(), max_size),
        table("updated", selectors.Prioritized(0.8), 1000),
        table("deleted", selectors.Uniform(), 10**6),
        reverb.Table.queue("queue", 10_000),
    ]


@dataclasses.dataclass
class Deleted:
    """The table of inserts, deletes and resets after a number of steps: its keys, by number."""

    keys: dict[int, int] = dataclasses.field(default_factory=dict)
    step: int = 0

    def change(self) -> tuple[str, int]:
        """Makes the next step: a reset, the delete of a key, or the insert of a number.

        The key of a number that was inserted is not known here.
        """
        step = self.step
        self.step += 1
        if step % 97 == 96:
            self.keys.clear()
            return "reset", -1
        if step % 11 == 10 and self.keys:
            number = min(self.keys)
            return "delete", self.keys.pop(number)
        self.keys[step] = 0
        return "insert", step


@dataclasses.dataclass
class Start:
    """Where each sequence goes on."""

    batches: int = 0
    updates: int = 0
    updated_keys: list[int] = dataclasses.field(default_factory=list)
    deletes: int = 0
    deleted_keys: dict[int, int] = dataclasses.field(default_factory=dict)
    produced: int = 0
    consumed: int = 0


def _said(kind: str, *values: Any) -> None:
    sys.stdout.write(json.dumps([kind, time.time(), *values]) + "\n")
    sys.stdout.flush()


def _batches(client: reverb.Client, start: Start) -> None:
    number = start.batches
    while True:
        numbers = np.arange(number, number + BATCH)
        data = {"frame": np.stack([frame(at) for at in numbers]), "number": numbers}
        client.insert_batch(data, {"first": 1.0, "second": 2.0})
        number += BATCH
        _said("batches", number)


def _updates(client: reverb.Client, start: Start | GroupStart) -> None:
    step = start.updates
    while True:
        key = start.updated_keys[step % NUM_UPDATED]
        client.mutate_priorities("updated", {key: step + 1.0})
        step += 1
        _said("updates", step)


def _deletes(client: reverb.Client, start: Start) -> None:
    state = Deleted({int(number): key for number, key in start.deleted_keys.items()}, start.deletes)
    while True:
        what, value = state.change()
        if what == "reset":
            client.reset("deleted")
        elif what == "delete":
            client.mutate_priorities("deleted", deletes=[value])
        else:
            added = client.insert_batch({"number": np.array([value])}, {"deleted": 1.0})
            state.keys[value] = int(added["deleted"][0])
        _said("deletes", state.step)


def _produce(client: reverb.Client, start: Start) -> None:
    number = start.produced
    while True:
        client.insert_batch({"number": np.array([number])}, {"queue": 1.0})
        number += 1
        _said("produced", number)
        time.sleep(0.001)


def _consume(client: reverb.Client, _: Start) -> None:
    while True:
        for sample in client.sample("queue", 1):
            _said("consumed", int(np.asarray(sample[0].data[0]).reshape(-1)[0]))


def _watch(client: reverb.Client, _: Start | GroupStart) -> None:
    while True:
        status = client.status()
        # The moment of a group is that of the shards that answer.
        if all(shard.status for shard in status.shards):
            store = status.store
            _said("synced", store.synced_at or 0.0, store.lag_s, store.syncs, store.sync_s)
        time.sleep(0.05)


def longest_sync_s(lines: list[list[Any]]) -> float:
    """The longest sync of a file that the watch has seen; the mean of those between two looks."""
    seen = [line[4:6] for line in lines if line[0] == "synced"]
    spans = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(seen) if b[0] > a[0]]
    return max((seconds / count for count, seconds in spans), default=0.0)


def _work(works: Iterable[Callable[[reverb.Client, Any], None]], start: Any) -> None:
    address = sys.argv[1]

    def work(each: Callable[[reverb.Client, Any], None]) -> None:
        try:
            each(reverb.Client(address), start)
        except reverb.errors.ReverbError as error:
            _said("error", each.__name__, str(error))

    for each in works:
        threading.Thread(target=work, args=(each,), daemon=True).start()
    sys.stdin.readline()


def main() -> None:
    """Works until it is killed; each thread ends with its first error."""
    works = (_batches, _updates, _deletes, _produce, _consume, _watch)
    _work(works, Start(**json.loads(sys.argv[2])))


def group_tables() -> list[reverb.Table]:
    """The tables of each shard of a group: the same without the queue, and no item leaves."""
    return [table for table in tables(10**6) if table.name != "queue"]


def _rows(client: reverb.Client, start: GroupStart) -> None:
    number = start.rows
    while True:
        numbers = np.arange(number, number + BATCH)
        data = {"frame": np.stack([frame(at) for at in numbers]), "number": numbers}
        _said("sending", int(number))
        client.insert_batch(data, {"first": 1.0, "second": 2.0})
        number += BATCH
        _said("rows", number)


def _deleted_items(client: reverb.Client, start: GroupStart) -> None:
    number = start.rows
    while True:
        for _ in range(20):
            _said("adding", number)
            client.insert_batch({"number": np.array([number])}, {"deleted": 1.0})
            _said("added", number)
            number += 1
        for item in list(client.scan("deleted"))[::2]:
            deleted = number_of(item)
            _said("deleting", deleted)
            client.mutate_priorities("deleted", deletes=[item.info.key])
            _said("deleted", deleted)


@dataclasses.dataclass
class GroupStart:
    """Where the work on a group goes on."""

    rows: int = 0
    updates: int = 0
    updated_keys: list[int] = dataclasses.field(default_factory=list)


def group_main() -> None:
    """`main` for a group."""
    _work((_rows, _updates, _deleted_items, _watch), GroupStart(**json.loads(sys.argv[2])))
