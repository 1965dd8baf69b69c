# SPDX-License-Identifier: Apache-2.0
"""The same calls, awaited: many coroutines, and those that are cancelled."""

import asyncio

import numpy as np
import pytest

from reverb import aio
from reverb.errors import DeadlineExceededError, FailedPreconditionError
from support.hosts import HOSTS
from support.rollout_tables import prompt, ready, rollout, table
from support.waiting import DEADLINE_S, wait_until


@pytest.fixture
def make(start, path):
    """Makes clients of a server with one table: `client, other = make(2)`."""

    def make(*args, **options):
        address = f"{HOSTS[path]}:{start(table(*args, **options)).port}"
        return [aio.Client(address, connect_timeout_s=DEADLINE_S) for _ in range(2)]

    return make


async def until(condition):
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


async def info(client):
    return (await client.server_info())["train"].rollouts


async def test_generators_and_a_learner_share_a_loop(make):
    client, learner = make(4, items_per_version=8, max_staleness=1)
    names = [str(number) for number in range(24)]

    async def feed():
        newest = ""
        for name in names:
            assert await client.insert_item("train", prompt(int(name)), name=name, after=newest)
            newest = name

    async def generate():
        while True:
            async with client.open_item("train") as item:

                async def make_one(number, item=item):
                    await asyncio.sleep(0)
                    return await client.add_rollout(item, rollout(number), rollout=number)

                assert all(await asyncio.gather(*map(make_one, list(item.missing))))

    async def learn():
        seen = []
        for version in range(1, 4):
            batch = await learner.take("train", 8)
            assert batch.rollout.tolist() == [0, 1, 2, 3] * 8
            assert batch.staleness.max() <= 1
            seen += batch.name
            assert await learner.set_version("train", version) == version
            assert (await learner.ack(batch)).tolist() == []
        return seen

    async with client, learner:
        others = [asyncio.create_task(it()) for it in (feed, *[generate] * 6)]
        assert sorted(await learn(), key=int) == names
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def test_a_cancelled_take_takes_nothing(make):
    client, other = make(1)
    async with client, other:
        waiting = asyncio.create_task(client.take("train", 1))
        await until(lambda: is_waiting(other))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await other.insert_item("train", prompt(0), [rollout()], name="a")
        assert (await other.take("train", 1, timeout_ms=20_000)).name == ["a"]


async def test_a_take_that_is_cancelled_with_its_answer_takes_nothing(start, path, connect):
    server = start(table(1))
    blocking = connect(server)
    async with aio.Client(f"{HOSTS[path]}:{server.port}") as client:
        for number in range(20):
            name = str(number)
            waiting = asyncio.create_task(client.take("train", 1))
            await until(lambda: is_waiting(client))
            # The answer comes while the loop stands still.
            ready(blocking, name, num_rollouts=1)
            wait_until(lambda: blocking.server_info()["train"].rollouts.leased == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert blocking.take("train", 1, ack=True, timeout_ms=20_000).name == [name]


async def is_waiting(client):
    return (await client.status()).tables["train"].sampling.waiting == 1


async def test_a_cancelled_block_frees_its_item(make):
    client, other = make(2)
    entered = asyncio.Event()

    async def generate():
        async with client.open_item("train") as item:
            await client.add_rollout(item, rollout())
            entered.set()
            await asyncio.sleep(3600)

    async with client, other:
        await other.insert_item("train", prompt(0), name="a")
        task = asyncio.create_task(generate())
        await entered.wait()
        task.cancel()
        async with other.open_item("train", timeout_ms=20_000) as item:
            assert (item.missing, item.attempts) == ([1], 0)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_stage_and_failures(make):
    client, _ = make(2, min_rollouts=1)
    async with client:
        await client.insert_item("train", prompt(0), name="a")
        async with client.open_item("train") as item:
            assert await client.fail_rollout(item, 0, "a test")
            assert await client.add_rollout(item, {"tokens": np.int32([1, 2])}, partial=True)
            assert await client.add_rollout(item, {"tokens": np.int32([1, 2])})
        batch = await client.take("train", 1, lacks="score", with_data=False)
        fetched = await client.fetch_rollouts(batch, ["tokens"])
        assert fetched.data["tokens"].to_list()[0].tolist() == [1, 2]
        assert (await client.extend(batch, {"score": np.float32([3])})).tolist() == [True]
        taken = await client.take("train", 1)
        assert (taken.rollout.tolist(), taken.data["score"].tolist()) == ([1], [3])
        await client.release(taken)
        assert (await client.take("train", 1, ack=True)).name == ["a"]
        assert (await info(client)).ready == 0


async def test_errors_are_the_same(make):
    client, _ = make(1)
    async with client:
        with pytest.raises(DeadlineExceededError):
            await client.take("train", 1, timeout_ms=0)
        with pytest.raises(DeadlineExceededError):
            async with client.open_item("train", timeout_ms=0):
                pass
        with pytest.raises(FailedPreconditionError, match="Continue after none"):
            await client.insert_item("train", prompt(0), name="b", after="a")


async def test_hundreds_of_blocks_wait_at_once(make):
    client, other = make(1)

    async def name():
        async with client.open_item("train") as item:
            await client.add_rollout(item, rollout())
            return item.name

    async with client, other:
        waiting = [asyncio.create_task(name()) for _ in range(300)]
        await asyncio.sleep(0)
        for number in range(300):
            await other.insert_item("train", prompt(0), name=str(number))
        assert sorted(map(int, await asyncio.gather(*waiting))) == list(range(300))
        assert (await info(other)).ready == 300
