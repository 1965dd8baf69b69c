# SPDX-License-Identifier: Apache-2.0
"""How a program leaves a writer without an exception: what arrives, and what the log counts."""

import asyncio
import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

import reverb
import reverb.aio
from reverb import errors
from reverb._writers import leaving
from support.writer_kinds import batched, each_of, legacy, sequence, trajectory

NUM_ITEMS = 5


each_writer = each_of(trajectory, batched, sequence, legacy)
each_own = each_of(batched, sequence)
each_but_legacy = each_of(trajectory, batched, sequence)


@pytest.fixture
def full(serve):
    """A client of a table that takes one item, and then none."""
    return serve(reverb.Table.queue("full", 1))


@pytest.fixture
def short_close(monkeypatch):
    """A `close` waits for 0.1 s at most."""
    monkeypatch.setattr(leaving, "CLOSE_TIMEOUT_MS", 100)


@each_writer
def test_a_flush_or_a_block_delivers_all(serve, make, left_writers):
    client = serve()
    writer, add = make(client)
    with writer:
        for _ in range(NUM_ITEMS):
            add()
    assert client.size("table") == NUM_ITEMS
    assert not left_writers()


@each_of(batched, sequence, legacy)
def test_close_delivers_all(serve, make, left_writers):
    client = serve()
    for _ in range(20):  # Without a flush some would be on their way.
        writer, add = make(client)
        for _ in range(NUM_ITEMS):
            add()
        writer.close()
    assert client.size("table") == 20 * NUM_ITEMS
    assert not left_writers()


def test_a_trajectory_writer_delivers_if_close_is_asked_to(serve, left_writers):
    client = serve()
    writer, add = trajectory(client)
    add()
    writer.close(flush=True)
    assert client.size("table") == 1
    assert not left_writers()


def test_a_trajectory_writer_counts_what_close_abandons(full, left_writers, until, caplog):
    writer, add = trajectory(full, "full")
    for _ in range(NUM_ITEMS):
        add()
    writer.close()
    until(left_writers)
    (line,) = left_writers()
    assert f"of table full that {full.server_address}" in line
    assert "Flush it first" in line
    assert [it.items for it in caplog.records if hasattr(it, "items")] in ([4], [5])
    del writer, add  # Nothing is counted twice.
    gc.collect()
    assert len(left_writers()) == 1


@each_own
def test_a_close_that_takes_too_long_names_the_items(full, make, short_close, left_writers):
    writer, add = make(full, "full")
    for _ in range(3):
        add()
    with pytest.raises(errors.DeadlineExceededError, match=r"^close did not .*Table full") as it:
        writer.close()
    assert "items" in str(it.value)
    writer.close()  # It is closed, and says it once.
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        add()
    assert not left_writers()


@each_but_legacy
def test_close_without_flush_abandons_silently(full, make, left_writers):
    writer, add = make(full, "full")
    for _ in range(3):
        add()
    writer.close(flush=False)
    del writer, add
    gc.collect()
    assert not left_writers()


@each_but_legacy
def test_a_deleted_writer_counts_what_is_lost(full, make, left_writers, until):
    writer, add = make(full, "full")
    for _ in range(3):
        add()
    del writer, add
    gc.collect()
    until(left_writers)
    (line,) = left_writers()
    assert "it was deleted without a flush" in line


@each_own
def test_threads_may_close_a_writer_at_the_same_time(serve, make, background):
    client = serve()
    writer, add = make(client)
    for _ in range(NUM_ITEMS):
        add()
    start = threading.Barrier(3)

    def close():
        start.wait()
        writer.close()

    calls = [background(close) for _ in range(2)]
    start.wait()
    for call in calls:
        call.result()
    assert client.size("table") == NUM_ITEMS


@each_own
def test_a_close_without_flush_ends_one_that_waits(full, make, background, until):
    writer, add = make(full, "full")
    for _ in range(3):
        add()
    call = background(writer.close)
    until(lambda: full.status().tables["full"].inserting.waiting)
    writer.close(flush=False)
    call.result()


@each_writer
def test_a_failed_writer_says_so_when_it_closes(start, connect, make, left_writers):
    server = start()
    writer, add = make(connect(server, connect_timeout_s=0.2))
    server.stop()
    if make is not legacy:  # Its `append` connects.
        add()
        if make is trajectory:
            writer.close()
            return
        with pytest.raises(errors.UnavailableError):
            writer.close()
    writer.close()


EXIT = """
import multiprocessing, sys, numpy as np, reverb
kept = []

def write():
    client = reverb.Client(sys.argv[1])
    writer = client.trajectory_writer(1)
    kept.append(writer)
    for _ in range(3):
        writer.append([1])
        writer.create_item("full", 1.0, [writer.history[0][-1:]])
    writer = client.batched_trajectory_writer(1, 1)
    kept.append(writer)
    for _ in range(3):
        writer.append([np.arange(1)])
        writer.create_items("full", 1.0, [writer.history[0][-1:]])
    writer = client.sequence_writer("full", 1)
    kept.append(writer)
    for _ in range(3):
        writer.append([1])

if sys.argv[2] == "worker":
    worker = multiprocessing.get_context("fork").Process(target=write)
    worker.start()
    worker.join()
else:
    write()
"""


@pytest.mark.parametrize("where", ["program", "worker"])
def test_a_program_that_ends_counts_what_is_lost(full, where):
    command = [sys.executable, "-c", EXIT, full.server_address, where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    lines = [line for line in done.stderr.splitlines() if "a writer was left" in line]
    assert lines
    assert all("the program ended without a flush" in line for line in lines)
    if where == "program":  # A worker does not write what was held back as a repetition.
        assert any("repeats=2" in line for line in lines), done.stderr


# --- Steps that are in no item --------------------------------------------------------------------


@pytest.fixture
def unwritten(caplog):
    """Returns a function for the lines about steps in no item: (level, steps, text)."""
    caplog.set_level("INFO")
    reverb.logging.to_python()
    yield lambda: [
        (it.levelname, it.steps, it.getMessage()) for it in caplog.records if hasattr(it, "steps")
    ]
    reverb.logging.to_stderr()


def ways_to_end():
    def block(writer):
        with writer:
            pass

    return [block, lambda writer: writer.close(), lambda writer: None]


@pytest.mark.parametrize("end", ways_to_end(), ids=["with", "close", "del"])
@pytest.mark.parametrize(
    ("length", "ends", "text"),
    [(None, False, "no episode ended: pass is_last"), (8, True, "had sequence_length steps")],
)
def test_a_writer_that_made_no_item_says_why(serve, unwritten, until, end, length, ends, text):
    client = serve(reverb.Table("unmade", *selectors(), 10, reverb.rate_limiters.MinSize(1)))
    options = {"max_sequence_length": 100} if length is None else {}
    writer = client.sequence_writer("unmade", length, **options)
    for i in range(7):
        writer.append([i], is_last=ends and i == 6)
    end(writer)
    del writer
    until(unwritten)
    ((level, steps, line),) = unwritten()
    assert (level, steps) == ("WARNING", 7)
    assert text in line
    assert client.size("unmade") == 0


def selectors():
    return reverb.selectors.Uniform(), reverb.selectors.Fifo()


def test_a_writer_that_made_items_warns_of_nothing(serve, unwritten):
    client = serve()
    with client.sequence_writer("table", None, max_sequence_length=9) as writer:
        writer.append([1], is_last=True)
        writer.append([2])
    with client.sequence_writer("table", None, max_sequence_length=1, drop_long_episodes=True) as w:
        w.append([1])
        w.append([2], is_last=True)
    with client.sequence_writer("table", 2):
        pass
    assert all(level == "INFO" for level, _, _ in unwritten())


# --- asyncio --------------------------------------------------------------------------------------


async def test_writers_of_asyncio_deliver_when_they_close(serve, left_writers):
    client = serve()
    async with reverb.aio.Client(client.server_address) as own:
        for _ in range(20):
            writer = await own.sequence_writer("table", 1)
            await writer.append([1])
            await writer.close()
            writer = await own.batched_trajectory_writer(1, 1)
            writer.append([np.arange(1)])
            await writer.create_items("table", 1.0, [writer.history[0][-1:]])
            await writer.close()
            await writer.close()
    assert client.size("table") == 40
    assert not left_writers()


def test_writers_of_asyncio_count_what_they_abandon(full, short_close, left_writers, until):
    async def program():
        async with reverb.aio.Client(full.server_address) as client:
            writer = await client.sequence_writer("full", 1)
            for _ in range(3):
                await writer.append([1])
            with pytest.raises(errors.DeadlineExceededError, match="close did not finish"):
                await writer.close()
            writer = await client.sequence_writer("full", 1)
            await writer.append([1])
            await writer.close(flush=False)
            assert not left_writers()
            writer = await client.trajectory_writer(1)
            writer.append([1])
            await writer.create_item("full", 1.0, [writer.history[0][-1:]])
            await writer.close()

    asyncio.run(program())
    until(left_writers)
    assert len(left_writers()) == 1


def test_a_cancelled_close_counts_what_it_abandons(full, left_writers, until):
    async def program():
        async with reverb.aio.Client(full.server_address) as client:
            writer = await client.sequence_writer("full", 1)
            for _ in range(3):
                await writer.append([1])
            closing = asyncio.create_task(writer.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing

    asyncio.run(program())
    until(left_writers)
    (line,) = left_writers()
    assert "its close() ended early" in line
