# SPDX-License-Identifier: Apache-2.0
"""Many writers and readers at once: limits are kept, and nothing is lost or doubled."""

import collections
import contextlib
import threading
import time

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import DeadlineExceededError, ReverbError
from support.waiting import DEADLINE_S

LENGTHS = pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(1, id="short"),
        pytest.param(60, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(240)]),
    ],
)


class Crew:
    """Threads that repeat something until the crew is dismissed, or one of them fails."""

    def __init__(self, *jobs):
        self.over = threading.Event()
        self._errors = []
        self._threads = [threading.Thread(target=self._repeat, args=(job,)) for job in jobs]
        for thread in self._threads:
            thread.start()

    def _repeat(self, job):
        try:
            while not self.over.is_set():
                job()
        except BaseException as error:
            self._errors.append(error)

    def watch(self, seconds, look=lambda: time.sleep(0.001)):
        """Looks on for a while; returns how often. Ends early if somebody has failed."""
        deadline = time.monotonic() + seconds
        looks = 0
        while time.monotonic() < deadline and not self._errors:
            look()
            looks += 1
        return looks

    def dismiss(self):
        """Waits until everybody has finished what they are at; raises what somebody raised."""
        self.over.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        if self._errors:
            raise self._errors[0]
        assert not any(thread.is_alive() for thread in self._threads), "a thread hangs"


@contextlib.contextmanager
def crew(*jobs):
    """A crew that is dismissed at the end of the block."""
    made = Crew(*jobs)
    try:
        yield made
    finally:
        made.dismiss()


def in_time(call):
    """A call that may run into its timeout."""

    def forgiving():
        with contextlib.suppress(DeadlineExceededError):
            call()

    return forgiving


def add(writer, value, table="table"):
    writer.append([value])
    writer.create_item(table, 1.0, {"a": writer.history[0][-1:]})


def check_limiter(info):
    """Checks the promise of a rate limiter, which always holds: see `reverb.rate_limiters`."""
    limiter = info.rate_limiter_info
    inserts, samples = limiter.insert_stats.completed, limiter.sample_stats.completed
    free = limiter.min_size_to_sample * limiter.samples_per_insert
    diff = inserts * limiter.samples_per_insert - samples
    if inserts < limiter.min_size_to_sample:
        assert samples == 0
        return
    assert limiter.min_diff <= diff <= max(limiter.max_diff, free), (inserts, samples, limiter)


@LENGTHS
@pytest.mark.parametrize("ratio", [0.7, 4.0])
def test_a_tight_limiter_holds_at_every_look(start, connect, ratio, seconds):
    limiter = reverb.rate_limiters.SampleToInsertRatio(ratio, 10, error_buffer=max(ratio, 1))
    uniform = reverb.selectors.Uniform()
    table = testing.table(sampler=uniform, rate_limiter=limiter, max_size=100)
    server = start(table)
    client = connect(server)

    def write():
        with connect(server).trajectory_writer(1) as writer:
            for _ in range(10):
                add(writer, 1)
                writer.flush(block_until_num_items=3)

    def look():
        check_limiter(table.info)
        check_limiter(client.server_info()["table"])

    readers = [
        in_time(lambda: list(client.sample("table", 7, timeout_ms=50))),
        in_time(lambda: client.sample_batch("table", 5, timeout_ms=50)),
        in_time(lambda: next(connect(server).sample("table", timeout_ms=50))),
    ]
    with crew(*readers), crew(write, write, write) as writers:
        assert writers.watch(seconds, look) > 20
    look()
    counts = table.info.rate_limiter_info
    assert counts.insert_stats.completed > 20
    assert counts.sample_stats.completed > 20


def read_all(client, seen, over):
    """Takes values out of a queue until there are none and none will come."""
    while True:
        ended = over.is_set()
        try:
            for steps in client.sample("table", 50, timeout_ms=100):
                seen.append(int(steps[0].data[0]))
            batch = client.sample_batch("table", 20, timeout_ms=100)
            seen.extend(batch.data[0].flatten().tolist())
        except DeadlineExceededError:
            if ended:
                return


@LENGTHS
def test_a_queue_hands_out_every_value_once(start, connect, seconds, background):
    table = reverb.Table.queue("table", 50)
    server = start(table)
    shared = connect(server)
    over = threading.Event()
    written = []
    numbers = iter(range(10**9))
    lock = threading.Lock()

    def next_values(count):
        with lock:
            return [next(numbers) for _ in range(count)]

    def write_items():
        values = next_values(30)
        with connect(server).trajectory_writer(1) as writer:
            for value in values:
                add(writer, value)
        written.extend(values)

    def write_old_items():
        values = next_values(10)
        with shared.writer(1, chunk_length=1, max_in_flight_items=3) as writer:
            for value in values:
                writer.append([value])
                writer.create_item("table", 1, 1.0)
        written.extend(values)

    def insert():
        values = next_values(2)
        shared.insert([values[0]], {"table": 1.0})
        shared.insert_batch([np.array([values[1]])], {"table": 1.0})
        written.extend(values)

    seen = [[] for _ in range(4)]
    readers = [background(read_all, connect(server), mine, over) for mine in seen[:2]]
    readers += [background(read_all, shared, mine, over) for mine in seen[2:]]
    with crew(write_items, write_items, write_old_items, insert, insert) as writers:
        writers.watch(seconds)
    over.set()
    for reader in readers:
        reader.result()
    assert len(written) > 100
    assert sorted(value for mine in seen for value in mine) == sorted(written)
    assert table.info.current_size == 0


@LENGTHS
def test_everything_at_once(start, connect, seconds):
    tables = [
        testing.table("uniform", sampler=reverb.selectors.Uniform(), max_size=200),
        testing.table("prioritized", sampler=reverb.selectors.Prioritized(0.6), max_size=200),
        testing.table(
            "heap",
            sampler=reverb.selectors.MaxHeap(),
            remover=reverb.selectors.MinHeap(),
            max_size=200,
            max_times_sampled=3,
        ),
    ]
    names = [table.name for table in tables]
    server = start(*tables)
    shared = connect(server)
    rng = np.random.default_rng(0)

    def write():
        with connect(server).trajectory_writer(3) as writer:
            for i in range(20):
                writer.append({"x": np.full(10, i), "y": np.float32(i)})
                if i >= 2:
                    for name in names:
                        history = writer.history
                        trajectory = {"x": history["x"][-3:], "y": history["y"][-1]}
                        writer.create_item(name, float(i), trajectory)

    def update():
        name = str(rng.choice(names))
        batch = shared.sample_batch(name, 16, timeout_ms=100)
        x, y = batch.data
        # Every sample is whole: three steps in a row, and the last of them.
        np.testing.assert_array_equal(x[:, 1:] - x[:, :-1], 1)
        np.testing.assert_array_equal(x[:, -1, 0], y)
        keys = batch.info.key.tolist()
        # The batch has fewer items if the rest did not come in time.
        updates = {key: rng.random() for key in keys[:8]}
        shared.mutate_priorities(name, updates, keys[8:10])

    def read():
        for sample in shared.sample("uniform", 20, emit_timesteps=False, timeout_ms=100):
            x, y = sample.data
            assert x[-1, 0] == y

    def reset():
        time.sleep(0.01)
        shared.reset(str(rng.choice(names)))

    def look():
        for name, info in shared.server_info().items():
            assert 0 <= info.current_size <= 200, name
            assert 0 <= info.num_episodes <= info.current_size or not info.current_size, name

    jobs = [write, write, in_time(update), in_time(update), in_time(read), reset]
    with crew(*jobs) as everybody:
        assert everybody.watch(seconds, look) > 20
    write()
    for name in names:
        assert len(list(shared.sample(name, 3, emit_timesteps=False))) == 3


@LENGTHS
def test_writers_that_come_and_go(start, connect, seconds):
    table = testing.table(max_size=10**6)
    server = start(table)
    shared = connect(server)
    flushed = collections.Counter()

    def drop():
        writer = shared.trajectory_writer(1)
        add(writer, 1)

    def drop_flushed():
        writer = shared.trajectory_writer(1)
        add(writer, 1)
        writer.flush()
        flushed[threading.get_ident()] += 1

    def close_elsewhere():
        writer = shared.trajectory_writer(1)
        closing = threading.Thread(target=writer.close)
        closing.start()
        with contextlib.suppress(ReverbError):
            add(writer, 1)
            writer.flush()
        closing.join()

    def drop_generator():
        samples = shared.sample("table", 10**6, timeout_ms=1000)
        next(samples)

    with crew(drop, drop_flushed, drop_flushed, close_elsewhere, in_time(drop_generator)) as all_:
        all_.watch(seconds)
    inserts = table.info.rate_limiter_info.insert_stats.completed
    assert sum(flushed.values()) > 20
    assert inserts >= sum(flushed.values())


def test_many_threads_share_a_client_that_has_not_connected(start, connect, background):
    server = start(testing.table(max_size=10**5))
    client = connect(server)
    calls = [background(client.insert, [i], {"table": 1.0}) for i in range(50)]
    calls += [background(client.server_info) for _ in range(50)]
    for call in calls:
        call.result()
    assert client.server_info()["table"].current_size == 50
