# SPDX-License-Identifier: Apache-2.0
"""A flush in the process of the server, which sends in its own thread."""

import concurrent.futures
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import reverb
from reverb import errors, testing
from support.waiting import DEADLINE_S, wait_until

MAX_SIZE = 100


@pytest.fixture
def queue() -> reverb.Table:
    return reverb.Table.queue("queue", max_size=MAX_SIZE)


@pytest.fixture
def server(queue: reverb.Table) -> Iterator[reverb.Server]:
    with reverb.Server([queue, testing.table("table")]) as server:
        yield server


@pytest.fixture
def client(server: reverb.Server) -> reverb.Client:
    return server.localhost_client()


def add(writer: reverb.TrajectoryWriter, value: int, table: str = "queue") -> None:
    writer.append({"x": value})
    writer.create_item(table, 1.0, {"x": writer.history["x"][-1:]})


def writer_at_work(client: reverb.Client, num_items: int = 1) -> reverb.TrajectoryWriter:
    """Returns a writer that has sent `num_items` with a flush for each."""
    writer = client.trajectory_writer(num_keep_alive_refs=1)
    for value in range(num_items):
        add(writer, value)
        writer.flush()
    return writer


def values(client: reverb.Client, count: int) -> list[int]:
    samples = client.sample("queue", count, emit_timesteps=False)
    return [int(np.ravel(sample.data[0])[0]) for sample in samples]


def test_items_arrive_in_order_and_once(client: reverb.Client, queue: reverb.Table) -> None:
    writer = writer_at_work(client)
    for value in range(1, MAX_SIZE):
        add(writer, value)
        if value % 3 == 0:
            writer.flush()
            assert queue.info.current_size == value + 1
    writer.flush()
    assert values(client, MAX_SIZE) == list(range(MAX_SIZE))


def test_items_after_a_flush_need_no_other_flush(
    client: reverb.Client, queue: reverb.Table
) -> None:
    writer = writer_at_work(client)
    add(writer, 1)
    wait_until(lambda: queue.info.current_size == 2)


def test_a_full_table_is_waited_for_with_a_limit(client: reverb.Client) -> None:
    writer = writer_at_work(client, MAX_SIZE)
    add(writer, MAX_SIZE)
    with pytest.raises(reverb.DeadlineExceededError, match=r"1 items sent to .* queue"):
        writer.flush(timeout_ms=50)
    # The runtime goes on with what the flush began.
    assert values(client, MAX_SIZE + 1) == list(range(MAX_SIZE + 1))
    writer.flush()


def test_close_ends_a_flush_that_waits(server: reverb.Server, client: reverb.Client) -> None:
    writer = writer_at_work(client, MAX_SIZE)
    add(writer, MAX_SIZE)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(writer.flush)
        wait_until(lambda: server.status().tables["queue"].inserting.waiting)
        writer.close()
        with pytest.raises(errors.FailedPreconditionError, match="closed"):
            flushed.result(DEADLINE_S)


def test_threads_flush_one_writer(client: reverb.Client) -> None:
    writer, lock = client.trajectory_writer(num_keep_alive_refs=1), threading.Lock()
    num_threads, num_items = 4, 200

    def write(first: int) -> None:
        for value in range(first, first + num_items):
            with lock:
                add(writer, value, "table")
            writer.flush()

    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(write, range(0, num_threads * num_items, num_items)))
    stored = [int(np.ravel(item.data[0])[0]) for item in client.scan("table")]
    assert sorted(stored) == list(range(num_threads * num_items))


def test_a_stopped_server_is_an_error(queue: reverb.Table) -> None:
    server = reverb.Server([queue])
    writer = writer_at_work(reverb.Client(f"localhost:{server.port}", connect_timeout_s=0.2))
    server.stop()
    add(writer, 1)
    with pytest.raises(reverb.ReverbError):
        writer.flush()
