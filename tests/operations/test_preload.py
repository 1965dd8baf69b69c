# SPDX-License-Identifier: Apache-2.0
"""Filling a table with the rate limiter off, under a running learner: the ratio does not notice."""

import itertools
import pathlib
import shutil
import threading

import numpy as np
import pytest

import reverb
from reverb import testing
from support.hosts import IN_PROCESS, REMOTE
from support.programs import Program
from support.waiting import Background, wait_until

SAMPLES_PER_INSERT = 4
MIN_SIZE = 10
ERROR_BUFFER = 100
MIN_DIFF, MAX_DIFF = (SAMPLES_PER_INSERT * MIN_SIZE + it for it in (-ERROR_BUFFER, ERROR_BUFFER))
# Each preload has so many items.
FEW = 20_000
MANY = pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])
ROWS = 1000

# Turns the limiter off and fills the table, until somebody ends it.
HOLDER = """
import sys
import numpy as np
import reverb
client = reverb.Client(sys.argv[1])
with client.rate_limiter_off("replay"):
    while True:
        client.insert_batch([np.zeros(1000)], {"replay": 1.0})
        print("inserted", flush=True)
"""


def ratio():
    return reverb.rate_limiters.SampleToInsertRatio(
        SAMPLES_PER_INSERT, MIN_SIZE, float(ERROR_BUFFER)
    )


class Preloaded:
    """A server whose learner takes one sample after another."""

    def __init__(self, max_size):
        sampler = reverb.selectors.Prioritized(0.8)
        table = testing.table("replay", max_size=max_size, sampler=sampler, rate_limiter=ratio())
        self.server = reverb.Server([table])
        self.client = reverb.Client(f"{IN_PROCESS}:{self.server.port}")
        self.learner_client = reverb.Client(f"{REMOTE}:{self.server.port}", connect_timeout_s=0.5)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.server.stop()

    def insert(self, count, host=IN_PROCESS):
        client = reverb.Client(f"{host}:{self.server.port}")
        client.insert_batch([np.zeros(count)], {"replay": 1.0})

    def start_learner(self):
        return Background(self._learn)

    def _learn(self):
        try:
            while True:
                self.learner_client.sample_batch("replay", 1)
        except reverb.ReverbError:
            return

    def status(self):
        return self.client.status().tables["replay"]

    def limiter_samples(self):
        """Samples as the rate limiter counts them: with those that neutral inserts allow."""
        info = self.server.server_info()["replay"].rate_limiter_info
        return info.sample_stats.completed

    def wait_for_learner(self):
        """Waits until the learner has taken all that the ratio allows."""
        wait_until(lambda: self.status().cursor == MIN_DIFF and self.status().sampling.waiting)


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_preload_leaves_the_ratio_as_it_was(count):
    with Preloaded(count + 10_000) as table:
        table.insert(MIN_SIZE)
        cursor, owed = table.status().cursor, SAMPLES_PER_INSERT * MIN_SIZE - MIN_DIFF
        assert (cursor, owed) == (SAMPLES_PER_INSERT * MIN_SIZE, ERROR_BUFFER)
        with table.client.rate_limiter_off("replay"):
            table.start_learner()
            preloads = [Background(fill, table, count // 2, host) for host in (IN_PROCESS, REMOTE)]
            # It gets what it is owed, and not a sample more for all these items.
            table.wait_for_learner()
            for preload in preloads:
                preload.result()
            assert table.status().samples == owed
            assert table.status().cursor == MIN_DIFF
        status = table.status()
        assert (status.items, status.samples, status.cursor) == (count + MIN_SIZE, owed, MIN_DIFF)
        assert table.limiter_samples() == owed + SAMPLES_PER_INSERT * count
        for inserts in (1, 7, 100):
            before = table.status().samples
            table.insert(inserts)
            table.wait_for_learner()
            assert table.status().samples == before + SAMPLES_PER_INSERT * inserts


def fill(table, count, host):
    for _ in range(count // ROWS):
        table.insert(ROWS, host)


@pytest.mark.parametrize("batches", [3, pytest.param(300, marks=pytest.mark.slow)])
def test_a_holder_that_is_killed_in_the_middle(batches):
    """The limiter is on again, and what came through without it is neutral all the same."""
    with Preloaded(10_000_000) as table:
        table.insert(MIN_SIZE)
        stopped = threading.Event()

        def write():
            while not stopped.is_set():
                table.insert(100, REMOTE)

        with Program(HOLDER, f"{IN_PROCESS}:{table.server.port}") as holder:
            assert holder.line() == "inserted"
            writing = Background(write)
            for _ in range(batches):
                assert holder.line() == "inserted"
            assert table.status().rate_limiter_off
            holder.kill()
        wait_until(lambda: table.status().rate_limiter_off is None)
        # Inserts from now on count, up to the limit.
        wait_until(lambda: table.status().inserting.waiting)
        status = table.status()
        assert status.inserts > 1000 * batches
        assert MAX_DIFF - SAMPLES_PER_INSERT < status.cursor <= MAX_DIFF
        assert status.samples == 0
        assert table.limiter_samples() == SAMPLES_PER_INSERT * status.inserts - status.cursor
        stopped.set()
        table.start_learner()
        writing.result()
        table.wait_for_learner()
        status = table.status()
        assert SAMPLES_PER_INSERT * status.inserts - table.limiter_samples() == MIN_DIFF


@pytest.mark.parametrize("count", [False, True])
def test_a_checkpoint_during_a_preload_has_the_counters_after_it(count, tmp_path):
    def serve():
        table = testing.table("replay", max_size=10_000, rate_limiter=ratio())
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
        return reverb.Server([table], checkpointer=checkpointer)

    def status(server):
        return server.status().tables["replay"]

    with serve() as server:
        client = server.localhost_client()
        client.insert_batch([np.zeros(MIN_SIZE)], {"replay": 1.0})
        client.sample_batch("replay", 20)
        with client.rate_limiter_off("replay", count=count):
            client.insert_batch([np.zeros(1000)], {"replay": 1.0})
            client.checkpoint()
            # It is not in the checkpoint.
            client.insert_batch([np.zeros(500)], {"replay": 1.0})
    samples = 20 if count else 20 + SAMPLES_PER_INSERT * 1000
    with serve() as server:
        info = server.server_info()["replay"].rate_limiter_info
        assert (info.insert_stats.completed, info.sample_stats.completed) == (1010, samples)
        assert status(server).cursor == SAMPLES_PER_INSERT * 1010 - samples
        assert status(server).rate_limiter_off is None
        client = server.localhost_client()
        inserted = Background(client.insert_batch, [np.zeros(50)], {"replay": 1.0})
        wait_until(lambda: status(server).inserting.waiting)
        allowed = 0 if count else (MAX_DIFF - 20) // SAMPLES_PER_INSERT
        assert status(server).inserts == 1010 + allowed
        client.sample_batch("replay", 4200 if count else 200)
        inserted.result()


def test_checkpoints_have_the_settings_of_one_moment(tmp_path):
    sizes = (50, 200, 1000)
    with serve_two(tmp_path / "live") as server:
        client = server.localhost_client()
        changes = itertools.count()
        stopped = threading.Event()

        def change():
            while not stopped.is_set():
                # Each size has its own number of samples, in both tables.
                size = sizes[next(changes) % len(sizes)]
                settings = reverb.TableChange(max_size=size, max_times_sampled=10 * size)
                client.configure_tables(dict.fromkeys("ab", settings))
                client.insert_batch([np.zeros(300)], dict.fromkeys("ab", 1.0))

        changing = Background(change)
        wait_until(lambda: client.server_info()["b"].current_size)
        found = set()
        for number in range(20):
            saved = client.checkpoint()
            # The directory itself is that of the running server.
            shutil.copytree(saved, tmp_path / f"copy{number}" / pathlib.Path(saved).name)
            found.add(size_of_one_moment(tmp_path / f"copy{number}"))
        stopped.set()
        changing.result()
    assert found <= set(sizes)
    assert len(found) > 1, "the settings changed between the checkpoints"


def serve_two(directory):
    """A server of two tables that have the settings of the checkpoint."""
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(directory), restore_settings=True)
    return reverb.Server([testing.table(name) for name in "ab"], checkpointer=checkpointer)


def size_of_one_moment(directory):
    """Loads a checkpoint, in which both tables must have the settings of one change."""
    with serve_two(directory) as server:
        (size,) = {info.max_size for info in server.server_info().values()}
        for info in server.server_info().values():
            assert info.max_times_sampled == 10 * info.max_size
            assert 0 < info.current_size <= info.max_size
        return size
