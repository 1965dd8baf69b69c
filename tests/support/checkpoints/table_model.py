# SPDX-License-Identifier: Apache-2.0
"""A table as a few lines of Python, and the search for the operation after which it was saved."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class Model:
    """A model of one thread's operations on a table that samples and removes the oldest item.

    Attributes:
      max_size: Maximum number of items.
      max_times_sampled: Number of samples after which an item is removed.
      items: Priority and number of samples of each key, in the order of insertion.
      inserts: Counter of the rate limiter.
      samples: Counter of the rate limiter.
      deletes: Counter of the rate limiter.
      unique: Items that were sampled at least once.
    """

    max_size: int
    max_times_sampled: int = 0
    items: dict[int, list[float]] = dataclasses.field(default_factory=dict)
    inserts: int = 0
    samples: int = 0
    deletes: int = 0
    unique: int = 0

    def apply(self, operation: tuple[Any, ...]) -> None:
        """Does what the operation says: its name, and its arguments."""
        name, *arguments = operation
        getattr(self, name)(*arguments)

    def insert(self, key: int, priority: float) -> None:
        """A new item."""
        if len(self.items) >= self.max_size:
            del self.items[next(iter(self.items))]
            self.deletes += 1
        self.items[key] = [priority, 0]
        self.inserts += 1

    def fill(self, keys: list[int], priority: float) -> None:
        """Many new items."""
        for key in keys:
            self.insert(key, priority)

    def update(self, priorities: dict[int, float]) -> None:
        """New priorities; keys that are gone are ignored."""
        for key, priority in priorities.items():
            if key in self.items:
                self.items[key][0] = priority

    def delete(self, keys: list[int]) -> None:
        """Deletes items; keys that are gone are ignored."""
        for key in keys:
            if self.items.pop(key, None) is not None:
                self.deletes += 1

    def sample(self, count: int) -> None:
        """Samples the oldest item some times; an item that was sampled often enough is removed."""
        for _ in range(count):
            key = next(iter(self.items))
            item = self.items[key]
            item[1] += 1
            self.samples += 1
            self.unique += item[1] == 1
            if item[1] == self.max_times_sampled:
                del self.items[key]
                self.deletes += 1

    def reset(self) -> None:
        """Empties the table."""
        self.items.clear()
        self.inserts = self.samples = self.deletes = self.unique = 0

    def counters(self) -> tuple[int, ...]:
        """Everything but the items."""
        return len(self.items), self.inserts, self.samples, self.deletes, self.unique

    def state(self) -> tuple[tuple[int, ...], list[tuple[int, float, int]]]:
        """Everything: counters, and key, priority and samples of each item in order."""
        items = [(key, priority, int(times)) for key, (priority, times) in self.items.items()]
        return self.counters(), items


def stored_state(stored: Any, table: str) -> tuple[tuple[int, ...], list[tuple[int, float, int]]]:
    """Returns the same of a table in a checkpoint."""
    record = stored.table(table)
    limiter = record.rate_limiter
    items = [(item.key, item.priority, item.times_sampled) for item in stored.items_of(table)]
    counters = (
        len(items),
        limiter.insert_count,
        limiter.sample_count,
        limiter.delete_count,
        record.num_unique_samples,
    )
    return counters, items


def moments(model: Model, log: list[tuple[Any, ...]], states: list[Any]) -> list[set[int]]:
    """Finds after how many operations a table was in certain states.

    Args:
      model: The table before the first operation.
      log: All operations, in order.
      states: The states to look for.

    Returns:
      For each state the numbers of operations after which the table was in it.
    """
    found: list[set[int]] = [set() for _ in states]
    for done in range(len(log) + 1):
        counters = model.counters()
        for at, state in enumerate(states):
            if state[0] == counters and state == model.state():
                found[at].add(done)
        if done < len(log):
            model.apply(log[done])
    return found
