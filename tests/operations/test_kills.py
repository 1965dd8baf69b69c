# SPDX-License-Identifier: Apache-2.0
"""Servers that are killed while clients work, and come back from their journal.

What was confirmed is known outside of the server. The tables that come back are compared with it
item by item, and each frame with its generator.
"""

import dataclasses
import json
import random
import time

import numpy as np
import pytest

import reverb
from support import kill_load
from support.kill_load import (
    BATCH,
    MEMORY,
    NUM_UPDATED,
    SHAPE,
    Deleted,
    Start,
    frame,
    number_of,
)
from support.programs import Program

SERVER = """
import sys
import reverb
from support import kill_load
store = reverb.Store(sys.argv[1], sync_interval_s=float(sys.argv[2]))
server = reverb.Server(kill_load.tables(), max_bytes=sys.argv[3], store=store)
print(server.port, flush=True)
sys.stdin.readline()
server.stop()
"""


class Server:
    """A server with a journal, in a process of its own."""

    def __init__(self, directory, interval_s):
        self.program = Program(SERVER, directory, interval_s, MEMORY)
        self.address = f"localhost:{self.program.line()}"
        self.client = reverb.Client(self.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.program.__exit__()

    def run_until_killed(self, start, seconds):
        """Lets clients work, kills the server, and returns when, and what was confirmed."""
        source = "from support import kill_load; kill_load.main()"
        with Program(source, self.address, json.dumps(dataclasses.asdict(start))) as load:
            time.sleep(seconds)
            killed_at = time.time()
            self.program.kill()
            load.tell()
            lines = [json.loads(line) for line in load.rest()]
        errors = [line for line in lines if line[0] == "error" and line[1] < killed_at]
        assert not errors, errors
        return killed_at, lines


@dataclasses.dataclass
class Confirmed:
    """How far each sequence was confirmed before some moment."""

    batches: int
    updates: int
    deletes: int
    produced: int
    consumed: set[int] = dataclasses.field(default_factory=set)

    @classmethod
    def before(cls, moment, start, lines):
        confirmed = cls(start.batches, start.updates, start.deletes, start.produced)
        for kind, at, value, *_ in lines:
            if at < moment and kind == "consumed":
                confirmed.consumed.add(value)
            elif at < moment and hasattr(confirmed, kind):
                setattr(confirmed, kind, value)
        return confirmed


class Recovered:
    """The tables of a server that came back, compared with what was confirmed.

    `least` was confirmed before the last commit that the server has called synced, `most` is all.
    What was sent and not confirmed may be there too: one step of each sequence.
    """

    def __init__(self, client, start, least, most):
        self.client, self.info = client, client.server_info()
        self.items = {table: list(client.scan(table)) for table in self.info}
        self.least, self.most, self.start = least, most, start
        for table, items in self.items.items():
            assert self.info[table].current_size == len(items), table

    def batches(self):
        """Tables that get the same are of one moment: an item may be the last of its message."""
        ends = []
        for table in ("first", "second"):
            numbers = sorted(map(number_of, self.items[table]))
            ends.append(numbers[-1] + 1 if numbers else 0)
            assert numbers == list(range(ends[-1] - len(numbers), ends[-1]))
            for item in self.items[table]:
                data = np.asarray(item.data[0]).reshape(SHAPE)
                assert (data == frame(number_of(item))).all(), number_of(item)
        assert 0 <= ends[0] - ends[1] <= 1
        # The item of a message that reached the first table alone comes again.
        extra = [item.info.key for item in self.items["first"] if number_of(item) >= ends[1]]
        self.client.mutate_priorities("first", deletes=list(map(int, extra)))
        assert self.info["second"].rate_limiter_info.insert_stats.completed == ends[1]
        assert self.least.batches <= ends[1]
        assert ends[0] <= self.most.batches + BATCH
        return ends[1]

    def updates(self):
        """Each key has the priority of its last update before one moment."""
        found = {number_of(item): item.info.priority for item in self.items["updated"]}
        steps = int(max(found.values()))
        expected = dict.fromkeys(range(NUM_UPDATED), 0.0)
        for step in range(max(0, steps - NUM_UPDATED), steps):
            expected[step % NUM_UPDATED] = step + 1.0
        assert found == expected
        assert self.least.updates <= steps <= self.most.updates + 1
        return steps

    def deletes(self):
        """Inserts, deletes and resets: the items after some number of steps."""
        found = self.deleted_keys()
        state = Deleted(dict.fromkeys(map(int, self.start.deleted_keys), 0), self.start.deletes)
        steps = []
        while state.step <= self.most.deletes + 1:
            if state.keys.keys() == found.keys() and state.step >= self.least.deletes:
                steps.append(state.step)
            state.change()
        assert steps, (self.least.deletes, self.most.deletes, sorted(found))
        return steps[-1]

    def deleted_keys(self):
        return {number_of(item): int(item.info.key) for item in self.items["deleted"]}

    def queue(self):
        """A queue loses nothing: what has left it was consumed, or was on its way."""
        limiter = self.info["queue"].rate_limiter_info
        end, begin = limiter.insert_stats.completed, limiter.sample_stats.completed
        assert sorted(map(number_of, self.items["queue"])) == list(range(begin, end))
        assert self.least.produced <= end <= self.most.produced + 1
        lost = set(range(self.start.consumed, begin)) - self.most.consumed
        assert len(lost) <= 1, lost
        assert max(self.least.consumed, default=-1) < begin
        return begin, end

    def start_of_next(self):
        keys = {number_of(item): int(item.info.key) for item in self.items["updated"]}
        begin, end = self.queue()
        return Start(
            batches=self.batches(),
            updates=self.updates(),
            updated_keys=[keys[number] for number in range(NUM_UPDATED)],
            deletes=self.deletes(),
            deleted_keys=self.deleted_keys(),
            produced=end,
            consumed=begin,
        )


def kill_again_and_again(directory, num_kills, interval_s, seed):
    """Returns of each kill how many seconds before it the oldest batch was confirmed that was lost,
    and how long the longest sync before it took.
    """
    moments, seen = random.Random(seed), []
    with Server(directory, interval_s) as server:
        numbers = np.arange(NUM_UPDATED)
        keys = server.client.insert_batch({"number": numbers}, {"updated": 0.0})["updated"]
        server.program.tell()
        assert server.program.ended() == 0, server.program.errors
    start = Start(updated_keys=[int(key) for key in keys])
    server = Server(directory, interval_s)
    for _ in range(num_kills):
        with server:
            killed_at, lines = server.run_until_killed(start, moments.uniform(0.3, 2.5))
        synced_at = max((line[2] for line in lines if line[0] == "synced"), default=0.0)
        least = Confirmed.before(synced_at, start, lines)
        most = Confirmed.before(np.inf, start, lines)
        server = Server(directory, interval_s)
        recovered = Recovered(server.client, start, least, most)
        start = recovered.start_of_next()
        times = [line[1] for line in lines if line[0] == "batches" and line[2] > start.batches]
        lost = killed_at - min(times) if times else 0.0
        seen.append((round(lost, 2), round(kill_load.longest_sync_s(lines), 3)))
    with server:
        pass
    return seen


@pytest.mark.timeout(120)
def test_five_kills_lose_nothing_that_was_synced(tmp_path):
    kill_again_and_again(tmp_path / "store", 5, 0.2, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_kills_lose_nothing_that_was_synced(tmp_path):
    seen = kill_again_and_again(tmp_path / "store", 25, 1.0, seed=8)
    print("seconds that were lost, and of the longest sync:", sorted(seen))
