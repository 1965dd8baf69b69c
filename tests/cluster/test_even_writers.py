# SPDX-License-Identifier: Apache-2.0
"""`writers=even`, the default: writers of separate programs fill the shards of a group evenly."""

import contextlib
import itertools
import time

import numpy as np
import pytest

import reverb
from reverb import testing
from support.waiting import DEADLINE_S
from support.writer_kinds import EVERY_WRITER

NUM_SHARDS = 4


def table(max_size=1_000):
    return testing.table("t", sampler=reverb.selectors.Uniform(), max_size=max_size)


class Group:
    """Four shards on ports of this machine; each client of them stands for a program."""

    def __init__(self, start, max_size=1_000, coordinated=True):
        self._start, self._max_size, self._coordinated = start, max_size, coordinated
        self.servers = [self._server(i) for i in range(NUM_SHARDS)]
        places = [f"127.1:{server.port}" for server in self.servers]
        self.address = "shards:///" + ",".join(places)
        self.each = [reverb.Client(place, connect_timeout_s=DEADLINE_S) for place in places]

    def _server(self, index, **options):
        shard = reverb.cluster.Shard(index, NUM_SHARDS) if self._coordinated else None
        return self._start(table(self._max_size), shard=shard, **options)

    def client(self, options=""):
        return reverb.Client(self.address + options, connect_timeout_s=DEADLINE_S)

    def sizes(self):
        return [client.server_info()["t"].current_size for client in self.each]

    def fill(self, sizes):
        for client, size in zip(self.each, sizes, strict=True):
            client.insert_batch([np.zeros((size, 1))], {"t": np.ones(size)})

    def come_back_empty(self, index):
        port = self.servers[index].port
        self.servers[index].stop()
        self.servers[index] = self._server(index, port=port)


@pytest.fixture
def group(start):
    return lambda **options: Group(start, **options)


def write_one(client):
    """Writes an item, and leaves the writer open."""
    return EVERY_WRITER["trajectory_writer"](client, "t")


@pytest.mark.parametrize("write", EVERY_WRITER.values(), ids=EVERY_WRITER)
@pytest.mark.parametrize("coordinated", [True, False], ids=["group", "list"])
def test_writers_of_many_programs_are_spread(group, write, coordinated):
    made = group(coordinated=coordinated)
    writers = [write(made.client(), "t") for _ in range(2 * NUM_SHARDS)]
    assert made.sizes() == [2] * NUM_SHARDS
    assert len({id(writer) for writer in writers}) == 2 * NUM_SHARDS, "all were open until here"


def test_writers_that_begin_at_the_same_time_are_spread(group):
    made = group()
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(made.client().trajectory_writer(1)) for _ in range(16)]
        for writer in writers:
            writer.append([np.zeros(1)])
            writer.create_item("t", 1.0, [writer.history[0][-1:]])
        for writer in writers:
            writer.flush()
    assert made.sizes() == [4] * NUM_SHARDS


def test_a_writer_begins_at_the_emptiest_shard(group):
    made = group()
    made.fill([9, 8, 7, 8])
    write_one(made.client()).close()
    assert made.sizes() == [9, 8, 8, 8]


def test_a_shard_is_as_full_as_its_part_of_max_size_says(group):
    made = group()
    made.fill([20, 30, 30, 30])
    made.each[1].configure_table("t", max_size=1_000)
    write_one(made.client()).close()
    assert made.sizes() == [20, 31, 30, 30]


@pytest.mark.parametrize("num_rows", [300, 4_096])
def test_batches_of_many_programs_are_spread(group, num_rows):
    made = group(max_size=4 * num_rows)
    for _ in range(NUM_SHARDS):
        rows, priorities = np.arange(num_rows), np.ones(num_rows)
        made.client().insert_batch([rows], {"t": priorities})
    assert made.sizes() == [num_rows] * NUM_SHARDS


def test_other_writers_begin_at_shards_in_turn(group):
    made = group()
    made.fill([9, 8, 0, 8])
    client = made.client("?writers=round_robin")
    for _ in range(NUM_SHARDS):
        write_one(client).close()
    assert made.sizes() == [10, 9, 1, 9]


def test_a_wait_of_a_writer_names_its_shard(start):
    servers = [start(reverb.Table.queue("t", 1)) for _ in range(2)]
    places = [f"127.1:{server.port}" for server in servers]
    writer = reverb.Client(f"shards:///{','.join(places)}").trajectory_writer(1)
    for i in range(2):
        writer.append([np.int64(i)])
        writer.create_item("t", 1.0, [writer.history[0][-1:]])
    writer.flush(block_until_num_items=1)
    shards = "|".join(rf"shard {i} \({place}\)" for i, place in enumerate(places))
    with pytest.raises(
        reverb.errors.DeadlineExceededError, match=rf"1 items sent to ({shards}) of shards:///"
    ):
        writer.flush(timeout_ms=1_000)


@pytest.mark.parametrize("window", [1, 3])
def test_one_writer_fills_a_group_with_an_empty_shard(group, window):
    made = group(max_size=400)
    steps = itertools.count()

    def write_until_full(writer):
        end = time.monotonic() + DEADLINE_S
        while min(made.sizes()) < 95:
            assert time.monotonic() < end, f"the shards hold {made.sizes()} items"
            for i in range(20):
                writer.append({"x": np.int64(next(steps))})
                if i + 1 >= window:
                    writer.create_item("t", 1.0, {"x": writer.history["x"][-window:]})
            writer.end_episode()

    with made.client().trajectory_writer(window) as writer:
        write_until_full(writer)
        made.come_back_empty(2)
        write_until_full(writer)
    for sample in made.client().scan("t"):
        assert np.diff(sample.data[0].ravel()).tolist() == [1] * (window - 1)


def test_a_writer_stays_while_its_shard_is_hardly_fuller(group):
    made = group(max_size=4_000)
    made.fill([100] * NUM_SHARDS)
    end = time.monotonic() + 3
    with made.client().trajectory_writer(1) as writer:
        # A twentieth of a shard is 50.
        for i in range(45):
            writer.append([np.zeros(1)])
            writer.create_item("t", 1.0, [writer.history[0][-1:]])
            writer.end_episode()
            time.sleep(max(0.0, (end - time.monotonic()) / (45 - i)))
    assert sorted(made.sizes()) == [100, 100, 100, 145]
