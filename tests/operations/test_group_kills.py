# SPDX-License-Identifier: Apache-2.0
"""Shards with journals that are killed while clients work with their group, and come back.

The model is that of `test_kills.py`, but a sequence has no order across shards: what one of them
lost was confirmed after its last commit, and the others lose nothing.
"""

import contextlib
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
    GroupStart,
    frame,
    number_of,
)
from support.programs import Program
from support.rolling_restart import free_ports

NUM_SHARDS = 3
SHARD = """
import sys
import reverb
from support import kill_load
store = reverb.Store(sys.argv[1], sync_interval_s=float(sys.argv[2]))
server = reverb.Server(
    kill_load.group_tables(), port=int(sys.argv[4]), max_bytes=sys.argv[3], store=store
)
print(server.port, flush=True)
sys.stdin.readline()
server.stop()
"""


class Group:
    """Servers of a group, each with a journal, in processes of their own."""

    def __init__(self, directory, interval_s):
        self.directory, self.interval_s = directory, interval_s
        self.programs, self.ports = {}, dict(enumerate(free_ports(NUM_SHARDS)))
        for shard in self.ports:
            self.start(shard)
        self.address = "shards:///" + ",".join(f"localhost:{it}" for it in self.ports.values())
        self.client = reverb.Client(self.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        for program in self.programs.values():
            program.__exit__()

    def start(self, shard):
        path = self.directory / f"shard-{shard}"
        port = self.ports[shard]
        self.programs[shard] = Program(SHARD, path, self.interval_s, MEMORY, port)
        assert int(self.programs[shard].line()) == port

    def run_until_killed(self, start, shard, seconds):
        """Lets clients work, kills the shard, and returns when, and what was confirmed."""
        source = "from support import kill_load; kill_load.group_main()"
        with Program(source, self.address, json.dumps(dataclasses.asdict(start))) as load:
            time.sleep(seconds)
            killed_at = time.time()
            self.programs[shard].kill()
            load.tell()
            lines = [json.loads(line) for line in load.rest()]
        errors = [line for line in lines if line[0] == "error" and line[1] < killed_at]
        assert not errors, errors
        self.programs.pop(shard).__exit__()
        self.start(shard)
        return killed_at, lines

    def scan(self, table):
        """The items of a table by their keys, and the shard of each; none is there twice."""
        items, shards = {}, {}
        for shard, port in self.ports.items():
            with contextlib.closing(reverb.Client(f"localhost:{port}")) as client:
                for item in client.scan(table):
                    assert item.info.key not in items, "twice"
                    items[item.info.key], shards[item.info.key] = item, shard
        return items, shards


class Round:
    """What was confirmed in a round, and what was still there after the kill of a shard."""

    def __init__(self, group, start, killed, lines):
        self.group, self.start, self.killed, self.lines = group, start, killed, lines
        # The earliest of all shards, as the group says it.
        self.synced_at = max((line[2] for line in lines if line[0] == "synced"), default=0.0)

    def said(self, kind):
        """When something was said of a number first."""
        return {line[2]: line[1] for line in reversed(self.lines) if line[0] == kind}

    def check_rows(self):
        """Returns when the oldest row was confirmed that was lost, and the next number."""
        lost_since, rows = np.inf, self.said("rows")
        end = max(self.said("sending"), default=self.start.rows) + BATCH
        in_flight, of_killed = set(range(end - BATCH, end)), []
        for table in ("first", "second"):
            items, shards = self.group.scan(table)
            for item in items.values():
                data = np.asarray(item.data[0]).reshape(SHAPE)
                assert (data == frame(number_of(item))).all(), number_of(item)
            numbers = [number_of(item) for item in items.values()]
            assert len(set(numbers)) == len(numbers), "twice"
            assert all(self.start.rows <= number < end for number in numbers), "invented"
            of_killed.append({number_of(items[it]) for it in items if shards[it] == self.killed})
            for confirmed, when in rows.items():
                if set(range(confirmed - BATCH, confirmed)) - set(numbers):
                    assert when >= self.synced_at, (table, confirmed)
                    lost_since = min(lost_since, when)
        assert of_killed[0] ^ of_killed[1] <= in_flight, "one moment of both tables"
        return lost_since, end

    def check_updates(self, before):
        """Returns the priorities by the numbers of items, and the next step."""
        items, shards = self.group.scan("updated")
        updates = self.said("updates")
        end = max(updates, default=self.start.updates)
        found = {number_of(item): item.info.priority for item in items.values()}
        assert found.keys() == before.keys()
        for key, item in items.items():
            number, priority = number_of(item), item.info.priority
            kept = [before[number]]
            for step, when in updates.items():
                is_on_disk = shards[key] != self.killed or when < self.synced_at
                if (step - 1) % NUM_UPDATED == number and is_on_disk:
                    kept.append(step)
            assert max(kept) <= priority <= end + 1, number
            assert priority == before[number] or (priority - 1) % NUM_UPDATED == number
        return found, end + 1

    def check_deletes(self):
        numbers = {number_of(item) for item in self.group.scan("deleted")[0].values()}
        deleting = self.said("deleting")
        for number, when in self.said("added").items():
            assert number in numbers or number in deleting or when >= self.synced_at, number
        for number, when in self.said("deleted").items():
            assert number not in numbers or when >= self.synced_at, number
        assert numbers <= self.said("adding").keys(), "invented"


def kill_again_and_again(directory, num_kills, interval_s, seed):
    """Returns of each kill how many seconds before it the oldest row was confirmed that was lost,
    and how long the longest sync before it took.
    """
    moments, seen = random.Random(seed), []
    with Group(directory, interval_s) as group:
        numbers = np.arange(NUM_UPDATED)
        group.client.insert_batch({"number": numbers}, {"updated": 0.0})
        keys = {number_of(item): int(key) for key, item in group.scan("updated")[0].items()}
        found = dict.fromkeys(range(NUM_UPDATED), 0.0)
        start = GroupStart(updated_keys=[keys[number] for number in range(NUM_UPDATED)])
        for _ in range(num_kills):
            group.client.sync()
            shard = moments.randrange(NUM_SHARDS)
            killed_at, lines = group.run_until_killed(start, shard, moments.uniform(0.3, 2.5))
            done = Round(group, start, shard, lines)
            lost_since, rows = done.check_rows()
            found, updates = done.check_updates(found)
            done.check_deletes()
            lost = round(max(0.0, killed_at - lost_since), 2)
            seen.append((lost, round(kill_load.longest_sync_s(lines), 3)))
            for table in ("first", "second", "deleted"):
                group.client.reset(table)
            start = dataclasses.replace(start, rows=rows, updates=updates)
    return seen


@pytest.mark.timeout(120)
def test_three_kills_of_shards_lose_nothing_that_was_synced(tmp_path):
    kill_again_and_again(tmp_path, 3, 0.2, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_kills_of_shards_lose_nothing_that_was_synced(tmp_path):
    seen = kill_again_and_again(tmp_path, 25, 1.0, seed=4)
    print("seconds that were lost, and of the longest sync:", sorted(seen))
