# SPDX-License-Identifier: Apache-2.0
"""Awaited writers whose block an exception leaves, as those of `tests/writers`."""

import asyncio

import numpy as np
import pytest

import reverb
from reverb import aio, errors, testing
from reverb._writers import leaving
from support.hosts import HOSTS
from support.waiting import DEADLINE_S, wait_until


async def trajectory(client, table):
    writer = await client.trajectory_writer(1)

    async def add():
        writer.append([1])
        await writer.create_item(table, 1.0, [writer.history[0][-1:]])

    return writer, add


async def batched(client, table):
    writer = await client.batched_trajectory_writer(1, 1)

    async def add():
        writer.append([np.arange(1)])
        await writer.create_items(table, 1.0, [writer.history[0][-1:]])

    return writer, add


async def sequence(client, table):
    writer = await client.sequence_writer(table, 1)
    return writer, lambda: writer.append([1])


@pytest.fixture(params=[trajectory, batched, sequence], ids=lambda it: it.__name__)
def make(request):
    """Makes a writer and what adds an item: `writer, add = await make(client, table)`."""
    return request.param


@pytest.fixture
def client(start, path):
    """A client of the server, for a test that is a coroutine."""
    server = start(testing.table(), reverb.Table.queue("full", 1))
    return aio.Client(f"{HOSTS[path]}:{server.port}", connect_timeout_s=DEADLINE_S)


@pytest.fixture
def short_flush(monkeypatch):
    """A flush after an exception takes 0.1 s at most; `tests/writers` has its real limit."""
    monkeypatch.setattr(leaving, "FLUSH_TIMEOUT_MS", 100)


async def leave(make, client, table, error, num_items):
    """Leaves a block by `error`, and asserts that the block raises it and nothing else."""
    writer, add = await make(client, table)

    async def block():
        async with writer:
            for _ in range(num_items):
                await add()
            raise error

    with pytest.raises(type(error)) as caught:
        await block()
    assert caught.value is error
    assert error.__context__ is None


async def test_items_are_confirmed_after_an_exception(client, make, left_writers):
    await leave(make, client, "table", KeyError("mine"), 3)
    assert (await client.server_info())["table"].current_size == 3
    assert not left_writers()


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt])
async def test_nothing_is_flushed_after_what_is_no_exception(client, make, left_writers, kind):
    await client.insert([1], {"full": 1.0})
    await leave(make, client, "full", kind("mine"), 3)
    wait_until(left_writers)
    (line,) = left_writers()
    assert "with items of table full that" in line


async def test_a_blocked_table_holds_an_exception(client, make, short_flush, left_writers):
    await client.insert([1], {"full": 1.0})
    loop = asyncio.get_running_loop()
    began = loop.time()
    await leave(make, client, "full", KeyError("mine"), 3)
    assert loop.time() - began >= 0.1
    wait_until(left_writers)
    assert "with items of table full that" in left_writers()[0]


async def test_items_that_are_confirmed_within_2_s_are_not_told(client, make, left_writers):
    await client.insert([1], {"full": 1.0})
    leaving = asyncio.create_task(leave(make, client, "full", KeyError("mine"), 3))
    batch = await client.sample_batch("full", 4)
    await leaving
    assert len(batch.info.key) == 4
    assert not left_writers()


async def test_a_reverb_error_is_raised_without_a_flush(client, make, left_writers, until):
    await client.insert([1], {"full": 1.0})
    await leave(make, client, "full", reverb.DeadlineExceededError("mine"), 3)
    if make is not trajectory:  # It stays open, and sends them on.
        until(left_writers)
    assert all("an exception left its block" in line for line in left_writers())


async def test_a_cancelled_flush_after_an_exception(client, make, left_writers):
    await client.insert([1], {"full": 1.0})
    writer, add = await make(client, "full")
    in_block = asyncio.Event()

    async def block():
        async with writer:
            await add()
            in_block.set()
            raise KeyError("mine")

    task = asyncio.create_task(block())
    # The task runs on until it awaits, which is the flush.
    await in_block.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__context__, KeyError)
    wait_until(left_writers)
    assert "with items of table full that" in left_writers()[0]


async def test_the_end_of_a_block_after_an_exception(client, make):
    writer, add = await make(client, "table")
    with pytest.raises(KeyError):
        async with writer:
            raise KeyError("mine")
    if make is trajectory:
        await add()
        await writer.flush()
        return
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        await add()
