# SPDX-License-Identifier: Apache-2.0
"""Structured writers that go out of scope: their items are there at once, and in order."""

import gc
import threading

import pytest

import reverb
from reverb import structured, testing
from support.waiting import DEADLINE_S, wait_until

REFERENCE = structured.create_reference_step({"a": None})


def config(table="queue"):
    return structured.create_config({"x": REFERENCE["a"][-1]}, table)


def write(client, first, count, table="queue"):
    """Writes `count` items and lets the writer go."""
    writer = client.structured_writer([config(table)])
    for at in range(first, first + count):
        writer.append({"a": at})


def stored(client, count, table="queue"):
    samples = client.sample(table, count, emit_timesteps=False, timeout_ms=int(DEADLINE_S * 1000))
    return [int(sample.data[0]) for sample in samples]


@pytest.fixture
def client(reach):
    with testing.server([reverb.Table.queue("queue", 10_000), testing.table("table")]) as made:
        yield reach(made)


def test_items_are_there_at_once_and_in_order(client):
    for episode in range(50):
        write(client, episode * 4, 4)
        assert client.server_info()["queue"].current_size == (episode + 1) * 4
    assert stored(client, 200) == list(range(200))


def test_a_writer_that_replaces_another_comes_after_it(client):
    writer = None
    for at in range(50):
        # The new writer is made before the old one is dropped.
        writer = client.structured_writer([config()])
        writer.append({"a": at})
    writer.flush()
    assert stored(client, 50) == list(range(50))


def test_nothing_arrives_after_a_reset(client):
    for at in range(20):
        write(client, at, 1)
        client.reset("queue")
        assert client.server_info()["queue"].current_size == 0


def test_items_that_a_table_holds_back_arrive_in_order(reach):
    with testing.server([reverb.Table.queue("queue", 2)]) as made:
        client = reach(made)
        # The queue has room for two, so the drops do not wait for the rest.
        for episode in range(3):
            write(client, episode * 2, 2)
        assert stored(client, 2) == [0, 1]
        assert sorted(stored(client, 4)) == [2, 3, 4, 5]


def test_a_drop_waits_without_the_interpreter(reach):
    """Another thread lets the table go on that the drop waits for, or has waited for."""
    with testing.server([reverb.Table.queue("queue", 1)]) as made:
        client = reach(made)
        write(client, 0, 1)
        found = []
        thread = threading.Thread(target=lambda: found.extend(stored(client, 2)))
        thread.start()
        write(client, 1, 1)
        thread.join(DEADLINE_S)
        assert found == [0, 1]


def test_a_writer_in_a_circle_is_settled_by_the_collector(client):
    writer = client.structured_writer([config()])
    writer.append({"a": 7})
    circle = [writer]
    circle.append(circle)
    del writer, circle
    gc.collect()
    assert client.server_info()["queue"].current_size == 1


def test_the_items_of_another_client_do_not_wait(reach):
    with testing.server([reverb.Table.queue("full", 1), testing.table("free")]) as made:
        one, two = reach(made), reach(made)
        write(one, 0, 3, "full")
        write(two, 0, 3, "free")
        wait_until(lambda: two.server_info()["free"].current_size == 3)
