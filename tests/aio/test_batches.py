# SPDX-License-Identifier: Apache-2.0
"""Batches that are fetched ahead, for `async for`, and those of the blocking client."""

import asyncio

import numpy as np
import pytest

import reverb
from reverb import aio, errors
from support.aio_tables import num_waiting, until
from support.hosts import HOSTS
from support.waiting import DEADLINE_S

# Batches that the core fetches, and those that a thread of Python fetches.
WAYS = {"core": {}, "thread": {"transform": lambda batch: batch}}
ways = pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)


@ways
async def test_batches_come_in_order(client, options):
    await client.insert_batch([np.arange(8.0)], {"queue": 1.0})
    values = []
    async with client.batches("queue", 2, prefetch=1, **options) as batches:
        async for batch in batches:
            values.append(batch.data[0][:, 0].tolist())
            if len(values) == 4:
                break
        assert batches.stats().num_returned == 4
    assert values == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


@ways
async def test_others_run_while_one_waits(client, options):
    async with client.batches("queue", 2, **options) as batches:
        task = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task awaits a batch"):
            await anext(batches)
        await client.insert_batch([np.arange(2.0)], {"queue": 1.0})
        assert (await task).data[0][:, 0].tolist() == [0, 1]
        assert batches.stats().wait_s > 0


@ways
async def test_a_cancelled_wait_loses_nothing(client, watcher, options):
    async with client.batches("queue", 2, **options) as batches:
        await until(lambda: num_waiting(watcher)[0] == 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(batches), 0.05)
        await client.insert_batch([np.arange(2.0)], {"queue": 1.0})
        assert (await anext(batches)).data[0][:, 0].tolist() == [0, 1]


@ways
async def test_a_task_that_waits_ends_with_close(client, options):
    batches = client.batches("queue", 2, **options)
    task = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0.01)
    await batches.close()
    with pytest.raises(StopAsyncIteration):
        await task
    await batches.close()
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        await batches.update_priorities([1], 1.0)


@ways
async def test_the_time_that_a_batch_may_take(client, options):
    async with client.batches("queue", 2, timeout_ms=50, **options) as batches:
        for _ in range(2):
            text = "no element after 50 ms, waiting for a sample of table queue"
            with pytest.raises(errors.DeadlineExceededError, match=text):
                await anext(batches)
        await client.insert_batch([np.arange(2.0)], {"queue": 1.0})
        await until(batches.ready)
        assert (await anext(batches)).data[0].shape == (2, 1)


@ways
async def test_an_error_of_the_server_is_raised(client, options):
    async with client.batches("no", 2, **options) as batches:
        for _ in range(2):
            with pytest.raises(errors.TableNotFoundError, match="no"):
                await anext(batches)


async def test_priorities_are_updated_in_the_background(client, watcher):
    await client.insert_batch([np.arange(4.0)], {"table": 1.0})
    async with client.batches("table", 2) as batches:
        batch = await anext(batches)
        await batches.update_priorities(batch.info.key, [7.0, 7.0])
        await batches.flush()
    priorities = {item.info.key: item.info.priority for item in watcher.scan("table")}
    assert [priorities[key] for key in batch.info.key.tolist()] == [7.0, 7.0]


async def test_tables_are_mixed_and_converted(client):
    await client.insert_batch([np.arange(4.0)], {"table": 1.0, "queue": 1.0})
    options = {"convert": lambda batch: len(batch.info.key), "mix": "item"}
    async with client.batches({"table": 1.0, "queue": 1.0}, 4, **options) as batches:
        assert await anext(batches) == 4


async def test_arguments_are_checked_at_once(client):
    with pytest.raises(errors.InvalidArgumentError, match="batch_size must be at least 1"):
        client.batches("table", 0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colums'"):
        client.batches("table", 1, colums=["x"])


@ways
async def test_they_go_on_when_the_client_is_closed(address, options):
    client = aio.Client(address, connect_timeout_s=DEADLINE_S)
    await client.insert_batch([np.arange(4.0)], {"table": 1.0})
    batches = client.batches("table", 2, **options)
    await client.close()
    for _ in range(4):
        assert (await anext(batches)).data[0].shape == (2, 1)
    await batches.close()
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        client.batches("table", 2)
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        client.batch_sampler("table", 2)


@ways
def test_loops_one_after_another(address, options):
    client = aio.Client(address, connect_timeout_s=DEADLINE_S)

    async def insert():
        await client.insert_batch([np.arange(4.0)], {"queue": 1.0})
        return client.batches("queue", 2, prefetch=1, **options)

    batches = asyncio.run(insert())
    for first in (0.0, 2.0):

        async def take():
            return await anext(batches)

        assert asyncio.run(take()).data[0][0, 0] == first
    asyncio.run(batches.close())


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_the_blocking_client_makes_the_same(start, host):
    server = start(reverb.Table.queue("queue", 10))
    client = reverb.Client(f"{host}:{server.port}")
    client.insert_batch([np.arange(4.0)], {"queue": 1.0})
    with client.batches("queue", 2, prefetch=1) as batches:
        assert isinstance(batches, reverb.BatchIterator)
        assert next(batches).data[0].tolist() == [[0.0], [1.0]]
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        client.batches("queue", 2, other=1)
