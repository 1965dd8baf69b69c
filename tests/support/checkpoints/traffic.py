# SPDX-License-Identifier: Apache-2.0
"""Threads that change tables in a way that is written down, while somebody saves."""

from __future__ import annotations

import itertools
import random
import threading

from support.checkpoints import table_model
from support.waiting import DEADLINE_S
from support.wire import messages
from support.wire.wire_client import WireClient

CHUNK = 1

# Items that are inserted before the first save. Copying a table takes a turn for every 1024.
FEW, MANY = 280, 6000


class Keeper:
    """Inserts items with keys that it chooses, all of one chunk, and confirmed one by one."""

    def __init__(self, port):
        self._wire = WireClient(f"127.0.0.1:{port}")
        self._stream = self._wire.insert_stream()
        self._chunks = [messages.numbers(CHUNK)]

    def insert(self, table, *keys, priority=1.0):
        items = [messages.item(key, table, (CHUNK, 0, 1, 0), priority=priority) for key in keys]
        self._stream.send(messages.insert(self._chunks, items, keep=[CHUNK]))
        self._chunks = []
        self._stream.confirmed(len(keys))

    def close(self):
        self._stream.cancel()
        self._wire.__exit__()


class Driver:
    """Does random operations on every table in turn, and writes them down.

    Attributes:
      log: The operations on each table, in order.
      begun: How many operations have begun on the first table.
      done: How many have been done on all.
    """

    def __init__(self, client, seed, first_key, names, *, size=FEW, resets=True):
        self._size = size
        self._client = client
        self._keeper = Keeper(client.server.port)
        self._random = random.Random(seed)
        self._keys = []
        self._next_key = itertools.count(first_key)
        self._names = names
        self._resets = resets
        self.log = []
        self.begun = self.done = 0

    def step(self):
        operation = self._choose(self.begun + 1)
        self.log.append(operation)
        self.begun += 1
        for name in self._names:
            self._do(name, operation)
        self.done += 1

    def close(self):
        self._keeper.close()

    def _choose(self, number):
        if number == 1:
            self._keys = [next(self._next_key) for _ in range(self._size)]
            return "fill", list(self._keys), 1.0
        kind = self._random.random()
        if kind < 0.35 or len(self._keys) < 5:
            key = next(self._next_key)
            self._keys.append(key)
            return "insert", key, float(number)
        some = self._random.sample(self._keys, 3)
        if kind < 0.85:
            return "update", dict.fromkeys(some, float(number))
        if kind < 0.998 or not self._resets:
            for key in some[:1]:
                self._keys.remove(key)
            return "delete", some[:1]
        self._keys.clear()
        return ("reset",)

    def _do(self, table, operation):
        name, *arguments = operation
        if name == "insert":
            key, priority = arguments
            self._keeper.insert(table, key, priority=priority)
        elif name == "fill":
            self._keeper.insert(table, *arguments[0], priority=arguments[1])
        elif name == "update":
            self._client.mutate_priorities(table, updates=arguments[0])
        elif name == "delete":
            self._client.mutate_priorities(table, deletes=arguments[0])
        else:
            self._client.reset(table)


class SamplingDriver(Driver):
    """Samples too; the oldest item first, as the tables of this test do."""

    def __init__(self, client, seed, first_key, names, max_times_sampled, **options):
        super().__init__(client, seed, first_key, names, **options)
        self._model = table_model.Model(10**9, max_times_sampled)

    def _choose(self, number):
        if len(self._model.items) > 20 and self._random.random() < 0.2:
            operation = ("sample", self._random.randint(1, 5))
        else:
            operation = super()._choose(number)
        self._model.apply(operation)
        return operation

    def _do(self, table, operation):
        if operation[0] == "sample":
            assert len(self._client.sample_batch(table, operation[1]).data[0]) == operation[1]
        else:
            super()._do(table, operation)


def go_on(drivers):
    """Lets drivers work until the returned function is called, which raises what they raised."""
    over, errors = threading.Event(), []

    def work(driver):
        try:
            while not over.is_set():
                driver.step()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(driver,)) for driver in drivers]
    for thread in threads:
        thread.start()

    def stop():
        over.set()
        for thread in threads:
            thread.join(DEADLINE_S)
        for driver in drivers:
            driver.close()
        assert not errors, errors[0]
        assert not any(thread.is_alive() for thread in threads)

    return stop


def save_often(client, drivers, until, count):
    """Saves again and again; returns the paths, and how far each driver was before and after."""
    saves = []
    for _ in range(count):
        steps = [driver.done + 20 for driver in drivers]
        until(lambda steps=steps: all(d.done >= s for d, s in zip(drivers, steps, strict=True)))
        before = [driver.done for driver in drivers]
        path = client.checkpoint()
        saves.append((path, before, [driver.begun for driver in drivers]))
    return saves
