# SPDX-License-Identifier: Apache-2.0
"""Batches in memory that is used in turn, for `async for`."""

import asyncio

import numpy as np
import pytest

import reverb
from reverb import aio, errors, testing
from support.aio_tables import num_waiting, tables, until
from support.hosts import HOSTS
from support.waiting import DEADLINE_S


async def test_batches_come_in_turn_in_the_same_memory(client):
    await client.insert_batch([np.arange(8.0)], {"queue": 1.0})
    values, places = [], []
    async with client.batch_sampler("queue", 2, num_buffers=2) as batches:
        async for batch in batches:
            values.append(batch.data[0][:, 0].tolist())
            places.append(batch.data[0].ctypes.data)
            if len(values) == 4:
                break
    assert values == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert places[:2] == places[2:]
    assert places[0] != places[1]
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_end_it(start, drop_last):
    server = start(testing.table("t", sampler=reverb.selectors.Shuffle()))

    async def main(address):
        found = []
        async with aio.Client(address) as client:
            await client.insert_batch([np.arange(5)], {"t": 1.0})
            options = {"epochs": 2, "drop_last": drop_last}
            async with client.batch_sampler("t", 2, **options) as batches:
                async for batch in batches:
                    found.append((set(batch.epoch.tolist()), batch.data[0].ravel().tolist()))
            with pytest.raises(StopAsyncIteration):
                await anext(batches)
        return found

    for host in HOSTS.values():
        server.localhost_client().reset("t")
        found = asyncio.run(main(f"{host}:{server.port}"))
        sizes = [len(values) for _, values in found]
        assert sizes == 2 * ([2, 2] if drop_last else [2, 2, 1])
        epochs = [epochs for epochs, _ in found]
        assert epochs == [{0}] * (len(sizes) // 2) + [{1}] * (len(sizes) // 2)
        if not drop_last:
            assert sorted(value for _, values in found[:3] for value in values) == list(range(5))


async def test_its_data_is_nested_as_that_of_the_twin(start):
    signature = {"x": reverb.specs.TensorSpec((1,), np.float64)}
    server = start(reverb.Table.queue("nested", 10, signature=signature))
    address = f"localhost:{server.port}"
    async with aio.Client(address) as client:
        await client.insert_batch({"x": np.arange(4.0)}, {"nested": 1.0})
        batches = client.batch_sampler("nested", 2, unpack_as_table_signature=True)
        assert (await anext(batches)).data["x"].tolist() == [[0.0], [1.0]]
        batches.close()
    (batch,) = (next(reverb.Client(address).batch_sampler("nested", 2, columns=["x"])),)
    assert batch.data[0].tolist() == [[2.0], [3.0]]


async def test_a_batch_after_a_cancelled_one_is_whole(client, watcher):
    batches = client.batch_sampler("queue", 2, partial=True)
    await client.insert_batch([np.arange(2.0)], {"queue": 1.0})
    assert (await anext(batches)).data[0][:, 0].tolist() == [0, 1]
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(anext(batches), 0.05)
    await until(lambda: num_waiting(watcher)[0] == 0)
    await client.insert_batch([np.arange(2.0) + 5], {"queue": 1.0})
    assert (await anext(batches)).data[0][:, 0].tolist() == [5, 6]
    with pytest.raises(errors.DeadlineExceededError):
        await anext(client.batch_sampler("queue", 2, timeout_ms=0))


async def test_a_batch_that_arrives_after_close_is_the_last_one(client, watcher):
    batches = client.batch_sampler("queue", 1)
    task = asyncio.create_task(anext_of(batches))
    await until(lambda: num_waiting(watcher)[0])
    batches.close()
    await client.insert([3.0], {"queue": 1.0})
    assert (await task).data[0].tolist() == [[3.0]]
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


async def anext_of(iterator):
    return await anext(iterator)


def test_arguments_are_checked_at_once():
    client = aio.Client("localhost:1")
    with pytest.raises(errors.InvalidArgumentError, match="batch_size must be at least 1"):
        client.batch_sampler("queue", 0)
    with pytest.raises(errors.InvalidArgumentError, match="num_buffers must be at least 1"):
        client.batch_sampler("queue", 1, num_buffers=0)


@pytest.mark.parametrize("form", ["{},{}", "shards:///{},{}"])
def test_several_servers(start, form):
    servers = [start(*tables()) for _ in range(2)]
    hosts = [f"{HOSTS['remote'].rpartition('/')[2]}:{it.port}" for it in servers]
    for host in hosts:
        reverb.Client(host).insert_batch([np.arange(10.0)], {"queue": 1.0})

    async def main():
        client = aio.Client(form.format(*hosts), connect_timeout_s=DEADLINE_S)
        async with client, client.batch_sampler("queue", 5) as batches:
            return [(await anext(batches)).data[0].copy() for _ in range(4)]

    values = np.concatenate(asyncio.run(main())).ravel()
    assert sorted(values.tolist()) == sorted([*range(10)] * 2)
