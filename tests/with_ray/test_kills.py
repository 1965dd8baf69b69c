# SPDX-License-Identifier: Apache-2.0
"""Shards that are killed again and again, while others write to the group and sample from it."""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import ray

import reverb
from reverb.adapters import ray as reverb_ray
from support.waiting import DEADLINE_S, PATIENCE

BATCH = 32

pytestmark = pytest.mark.alone


class Learner:
    """A thread that samples and updates priorities; every error but a deadline is kept."""

    def __init__(self, client):
        self._client = client
        self._stop = threading.Event()
        self._answers = []
        self.error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            while not self._stop.is_set():
                begin = time.monotonic()
                sample = self._client.sample_batch("table", BATCH, timeout_ms=30_000)
                self._answers.append((begin, time.monotonic()))
                self._client.mutate_priorities(
                    "table", dict.fromkeys(sample.info.key.tolist(), 1.0 + random.random())
                )
        except Exception as error:
            self.error = error

    def longest_wait_since(self, moment):
        """Returns the longest time between two answers, in seconds."""
        ends = [moment, *(end for _, end in self._answers if end > moment), time.monotonic()]
        return max(np.diff(ends))

    def stop(self):
        self._stop.set()
        self._thread.join(2 * DEADLINE_S)
        assert not self._thread.is_alive()


def make_writer():
    @ray.remote(num_cpus=0.1, max_concurrency=2)
    class Writer:
        """Writes episodes until it is told to stop; returns how many items were confirmed."""

        def __init__(self):
            self.is_stopped = False

        def run(self):
            client = reverb_ray.connect("test")
            writer = client.trajectory_writer(2)
            number = 0
            while not self.is_stopped:
                for _ in range(10):
                    writer.append([np.int64(number), np.zeros(50, np.float32)])
                    writer.create_item("table", 1.0, [it[-1:] for it in writer.history])
                    number += 1
                writer.end_episode(timeout_ms=30_000)
                time.sleep(0.01)
            writer.close()
            return number

        def stop(self):
            self.is_stopped = True

    return Writer.remote()


def starts(group, index):
    return group.status().shards[index].num_starts


def keys_in(source):
    return {int(sample.info.key) for sample in source.scan("table")}


@pytest.mark.parametrize(
    "num_kills",
    [
        pytest.param(3, marks=pytest.mark.timeout(180)),
        pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_shards_that_are_killed_under_load(
    start_group, other_tables, root, until, capsys, num_kills
):
    group = start_group(
        other_tables(max_size=lambda: 10_000_000), checkpoint_directory=root, num_shards=4
    )
    writers = [make_writer() for _ in range(2)]
    runs = [writer.run.remote() for writer in writers]
    learner = Learner(group.client())
    waits, backs = [], []
    rng = random.Random(1)
    for kill in range(num_kills):
        if kill % 5 == 0:
            group.checkpoint()
        index = rng.randrange(4)
        shard = group.status().shards[index]
        begin = time.monotonic()
        os.kill(shard.pid, signal.SIGKILL)
        until(lambda index=index, past=shard.num_starts: starts(group, index) > past)
        backs.append(time.monotonic() - begin)
        until(lambda: group.status().is_complete)
        waits.append(learner.longest_wait_since(begin))
        now = group.status().shards[index]
        saved = keys_in(reverb.checkpointers.read(now.restored_from))
        assert saved <= keys_in(reverb.Client(now.address))
        assert learner.error is None, learner.error
    learner.stop()
    assert learner.error is None, learner.error
    for writer in writers:
        writer.stop.remote()
    written = ray.get(runs, timeout=60)
    with capsys.disabled():
        print(
            f"\n{num_kills} kills: longest wait of the learner {summary(waits)}; shard back "
            f"{summary(backs)}; {sum(written)} items confirmed"
        )
    assert np.median(waits) < 1.0 * PATIENCE
    assert np.median(backs) < 5.0 * PATIENCE


# Ray takes 15 s to find that a node is gone.
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_removed_node_comes_back_elsewhere(start_group, cluster, root, until, capsys):
    node = cluster.add_node()
    others = [it["NodeID"] for it in ray.nodes() if it["Alive"] and it["NodeID"] != node.node_id]
    group = start_group(checkpoint_directory=root, placement=[node.node_id, *others[:2]])
    client = group.client()
    for number in range(300):
        client.insert([np.int64(number), np.zeros(50, np.float32)], {"table": 1.0})
    group.checkpoint()
    before = group.status()
    (index,) = [it.index for it in before.shards.values() if it.node_id == node.node_id]
    writer = make_writer()
    run = writer.run.remote()
    learner = Learner(group.client())
    begin = time.monotonic()
    cluster.remove_node(node)
    until(lambda: starts(group, index) > 1, 60)
    back = time.monotonic() - begin
    until(lambda: group.status().is_complete)
    wait = learner.longest_wait_since(begin)
    learner.stop()
    assert learner.error is None, learner.error
    writer.stop.remote()
    assert ray.get(run, timeout=60) > 0
    now = group.status().shards[index]
    assert now.node_id != node.node_id
    saved = keys_in(reverb.checkpointers.read(now.restored_from))
    assert saved <= keys_in(reverb.Client(now.address))
    with capsys.disabled():
        print(f"\na removed node: the learner waited {wait:.2f} s; shard back after {back:.1f} s")
    assert wait < 16.0 * PATIENCE
    assert back < 40.0 * PATIENCE


def summary(seconds):
    return f"median {np.median(seconds):.2f} s, p95 {np.quantile(seconds, 0.95):.2f} s"
