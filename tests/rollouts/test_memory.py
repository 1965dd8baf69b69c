# SPDX-License-Identifier: Apache-2.0
"""Servers whose memory fills with items that are not ready."""

import contextlib
import threading
import time

import numpy as np
import pytest

import reverb
from reverb.errors import DeadlineExceededError
from support.rollout_tables import info, prompt, ready, removed
from support.waiting import DEADLINE_S

MAX_BYTES = 16 * 2**20
# Noise, which does not compress.
LARGE = {"tokens": np.arange(2**18, dtype=np.int32), "score": np.float32(1)}


@pytest.fixture
def small(start, connect):
    """Two clients of a server with 16 MiB: `client, other = small(2)`."""

    def small(num_rollouts, **options):
        signature = {
            "prompt": reverb.specs.TensorSpec([None], np.int32),
            "tokens": reverb.specs.TensorSpec([None], np.int32),
            "score": reverb.specs.TensorSpec([], np.float32),
        }
        table = reverb.Table.rollouts("train", num_rollouts, signature, **options)
        server = start(table, reverb.testing.table("other"), max_bytes=MAX_BYTES)
        return [connect(server, compression="none") for _ in range(2)]

    return small


def open_items(client, stack):
    """Holds all open items that are free until the end of `stack`."""
    with contextlib.suppress(DeadlineExceededError):
        while True:
            yield stack.enter_context(client.open_item("train", timeout_ms=0))


def fill(client, num_items):
    for number in range(num_items):
        client.insert_item("train", prompt(0), [LARGE], name=str(number))


def test_new_items_wait_while_others_need_room_to_grow(small, background, until):
    """At three quarters of the memory; a learner makes room."""
    client, other = small(1)
    waiting = background(fill, other, 20)
    until(lambda: info(client).ready >= 5)
    until(lambda: client.diagnose("train").state == "full")
    assert "a quarter is for the rollouts of items that are there" in (
        client.diagnose("train").sentence
    )
    time.sleep(0.3)  # Time for a server that would read on.
    assert client.status().memory.total < 0.9 * MAX_BYTES
    client.insert({"x": np.zeros(4)}, {"other": 1.0})  # Other tables have room.
    for _ in range(20):
        client.take("train", 1, ack=True, timeout_ms=round(1000 * DEADLINE_S))
    waiting.result()


def test_unfinished_items_that_fill_the_memory_are_given_up(small, until):
    """Forty items hold a rollout of a megabyte each, and need a second one."""
    client, learner = small(2, max_attempts=1)
    names = [str(number) for number in range(40)]
    for name in names:
        client.insert_item("train", prompt(0), name=name)
    trained = []

    def learn():
        while len(trained) < len(names):
            trained.extend(learner.take("train", 1, ack=True).name)

    thread = threading.Thread(target=learn, daemon=True)
    thread.start()
    given_up = False
    while len(trained) < len(names):
        with contextlib.ExitStack() as stack:
            items = list(open_items(client, stack))
            for number in range(2):
                for item in items:
                    if number in item.missing:
                        client.add_rollout(item, LARGE, rollout=number)
        given_up |= client.status().tables["train"].rollouts.num_again > 0
        assert client.status().memory.total < 1.2 * MAX_BYTES
    thread.join(DEADLINE_S)
    assert sorted(trained) == sorted(names)
    assert given_up
    assert removed(client) == {"sampled_out": len(names)}


def test_rollouts_wait_while_no_memory_is_left(small, background, until):
    """Where an item is ready, a learner can make room, so nothing is given up."""
    client, learner = small(1)
    for number in range(40):
        client.insert_item("train", prompt(0), name=str(number))

    def generate():
        for _ in range(40):
            with client.open_item("train") as item:
                client.add_rollout(item, LARGE)

    waiting = background(generate)
    until(lambda: client.status().memory.total >= 0.95 * MAX_BYTES)
    until(lambda: client.diagnose("train").state == "full")
    for _ in range(40):
        assert client.status().memory.total < 1.2 * MAX_BYTES
        learner.take("train", 1, ack=True, timeout_ms=round(1000 * DEADLINE_S))
    waiting.result()
    assert client.status().tables["train"].rollouts.num_again == 0


def test_an_item_that_a_learner_waits_for_gets_memory(small, background, until):
    """It is full of items that are ready, and that are taken after an older one."""
    waits = {"on_stale": "wait", "items_per_version": 10, "max_staleness": 1}
    client, learner = small(1, open_timeout_s=600, **waits)
    for name in ["slow", *map(str, range(19))]:
        client.insert_item("train", prompt(0), name=name)

    def generate():
        for _ in range(19):
            with client.open_item("train") as item:
                client.add_rollout(item, LARGE)

    with client.open_item("train") as slow:
        client.set_version("train", 1)
        generator = background(generate)
        until(lambda: client.status().memory.total >= 0.9 * MAX_BYTES)
        taken = background(learner.take, "train", 10, timeout_ms=round(1000 * DEADLINE_S))
        assert client.add_rollout(slow, LARGE)
    batch = taken.result()
    assert (slow.name, batch.name[0]) == ("slow", "slow")
    learner.ack(batch)
    generator.result()


def test_a_plain_table_is_not_spared_for_rollouts(small):
    """Items of a table that may evict leave first."""
    client, _ = small(2)
    for _ in range(14):
        client.insert_sequence({"x": np.zeros((2**15, 4))}, {"other": 1.0})
    ready(client, "a")
    assert client.status().tables["other"].removed.bytes > 0
    assert info(client).ready == 1
