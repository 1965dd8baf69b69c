# SPDX-License-Identifier: Apache-2.0
"""Cancelled calls: nothing waits for them any more, and what they had got is not lost silently."""

import asyncio
import signal
import threading
import time

import numpy as np
import pytest

import reverb
from reverb import aio, errors, testing
from support.aio_tables import WAITS, num_waiting, tables, until
from support.hosts import HOSTS
from support.programs import Program
from support.waiting import DEADLINE_S, wait_until


async def next_of(iterator):
    return await anext(iterator)


# Calls that wait for a rate limiter which allows nothing.
WAITING = {
    "sample_batch": lambda client: client.sample_batch("queue", 2),
    "sample_batch_out": lambda client: client.sample_batch("queue", 1, out=[np.zeros((1, 1))]),
    "sample_batch_whole": lambda client: client.sample_batch("queue", 2, partial=False),
    "sample": lambda client: next_of(client.sample("queue", 5)),
}


@pytest.mark.parametrize("name", WAITING)
async def test_a_cancelled_sample_leaves_no_waiter(client, watcher, name):
    tasks = [asyncio.create_task(WAITING[name](client)) for _ in range(10)]
    await until(lambda: num_waiting(watcher)[0] == 10)
    for task in tasks[:9]:
        task.cancel()
    await asyncio.wait(tasks[:9])
    assert all(task.cancelled() for task in tasks[:9])
    await until(lambda: num_waiting(watcher)[0] == 1)
    # The next insert goes to the task that still waits, and nowhere else.
    await client.insert_batch([np.arange(2.0)], {"queue": 1.0})
    await asyncio.wait_for(tasks[9], DEADLINE_S)
    taken = watcher.server_info()["queue"].current_size
    # An iterator may have prefetched the other one.
    assert taken in {"sample_batch_out": [1], "sample": [0, 1]}.get(name, [0])


async def test_what_comes_after_a_cancelled_sample_stays(client, watcher):
    for number in range(40):
        task = asyncio.create_task(client.sample_batch("queue", 1))
        await until(lambda: num_waiting(watcher)[0] == 1)
        task.cancel()
        await asyncio.wait([task])
        # It follows at once, perhaps in the same bytes of the connection.
        await client.insert([float(number)], {"queue": 1.0})
        batch = await asyncio.wait_for(client.sample_batch("queue", 1), DEADLINE_S)
        assert batch.data[0].tolist() == [[float(number)]]


async def test_timeouts_of_asyncio_leave_no_waiter(client, watcher):
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(client.sample_batch("queue", 1), 0.05)
    await until(lambda: num_waiting(watcher)[0] == 0)
    # The client goes on as before.
    await client.insert([1.0], {"queue": 1.0})
    assert (await client.sample_batch("queue", 1)).data[0].tolist() == [[1.0]]


async def test_in_this_process_the_waiter_is_gone_with_the_task(start):
    server = start(*tables())
    watcher = reverb.Client(f"localhost:{server.port}")
    async with aio.Client(f"localhost:{server.port}") as client:
        task = asyncio.create_task(client.sample_batch("queue", 1))
        await until(lambda: num_waiting(watcher)[0] == 1)
        task.cancel()
        await asyncio.wait([task])
        assert num_waiting(watcher)[0] == 0


async def test_a_cancelled_batch_keeps_the_parts_that_had_arrived(client, watcher):
    caught = []

    async def sample():
        try:
            await client.sample_batch("queue", 3)
        except asyncio.CancelledError as error:
            caught.append(error)
            raise

    task = asyncio.create_task(sample())
    await until(lambda: num_waiting(watcher)[0] == 1)
    await client.insert([7.0], {"queue": 1.0})
    await until(lambda: watcher.server_info()["queue"].current_size == 0)
    # The item is on its way through this process.
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    (sample,) = caught[0].samples
    assert isinstance(sample, reverb.ReplaySample)
    assert sample.data[0].tolist() == [7.0]
    assert sample.info.times_sampled == 1


async def test_a_complete_batch_of_a_cancelled_task_is_not_lost(start):
    server = start(*tables())
    watcher = reverb.Client(f"localhost:{server.port}")
    async with aio.Client(f"localhost:{server.port}") as client:
        samples = []

        async def sample():
            try:
                await client.sample_batch("queue", 1)
            except asyncio.CancelledError as error:
                samples.extend(error.samples)
                raise

        task = asyncio.create_task(sample())
        await until(lambda: num_waiting(watcher)[0] == 1)
        # The call ends in another thread, while this one keeps the event loop from hearing it.
        watcher.insert([3.0], {"queue": 1.0})
        assert watcher.server_info()["queue"].current_size == 0
        time.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert [it.data[0].tolist() for it in samples] == [[3.0]]


async def test_an_iterator_goes_on_after_a_timeout(client, watcher):
    iterator = client.sample("queue", 3)
    for expected in (1.0, 2.0, 3.0):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(iterator), 0.03)
        await until(lambda: num_waiting(watcher)[0] == 0)
        await client.insert([expected], {"queue": 1.0})
        steps = await anext(iterator)
        assert steps[0].data == [expected]
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)


async def test_an_iterator_that_is_closed_or_dropped_leaves_no_waiter(client, watcher):
    await client.insert([1.0], {"queue": 1.0})
    async for _ in client.sample("queue", 5):
        break
    # No waiter, nor a stream that is about to wait.
    await until(lambda: not watcher.status().traffic.streams["sample"])
    assert num_waiting(watcher)[0] == 0
    await client.insert([2.0], {"queue": 1.0})
    iterator = client.sample("queue", 5)
    await anext(iterator)
    await iterator.aclose()
    await until(lambda: not watcher.status().traffic.streams["sample"])
    assert num_waiting(watcher)[0] == 0
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)


async def test_an_iterator_is_for_one_task(client):
    iterator = client.sample("queue", 5)
    task = asyncio.create_task(next_of(iterator))
    await asyncio.sleep(0.05)
    with pytest.raises(RuntimeError, match="waiting for a sample of this generator"):
        await anext(iterator)
    task.cancel()


async def test_cancelled_inserts_and_flushes_leave_the_client_usable(start, path):
    limiter = reverb.rate_limiters.Queue(1)
    table = testing.table("full", max_size=100, max_times_sampled=1, rate_limiter=limiter)
    server = start(table)
    address = f"{HOSTS[path]}:{server.port}"
    async with aio.Client(address) as client:
        await client.insert([1.0], {"full": 1.0})
        tasks = [asyncio.create_task(client.insert([2.0], {"full": 1.0})) for _ in range(5)]
        writer = await client.trajectory_writer(1)
        writer.append([3.0])
        await writer.create_item("full", 1.0, [writer.history[0][-1:]])
        with pytest.raises(errors.DeadlineExceededError, match="flush"):
            await writer.flush(timeout_ms=20)
        tasks += [asyncio.create_task(writer.flush())]
        tasks += [asyncio.create_task(writer.end_episode())]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        # The writer's item was queued, and goes in when there is room.
        values = set()
        flushing = asyncio.create_task(writer.flush())
        while not flushing.done():
            batch = await client.sample_batch("full", 1, timeout_ms=1000)
            values.add(float(batch.data[0][0, 0]))
            await asyncio.sleep(0.01)
        await flushing
        values.update(
            [
                float(steps[0].data[0])
                async for steps in client.sample("full", table.info.current_size)
            ]
        )
        assert {1.0, 3.0} <= values


async def test_random_cancellations_lose_nothing(start):
    server = start(reverb.Table.queue("queue", 5000))
    generator = np.random.default_rng(1)
    got = []

    async def sample(client):
        try:
            batch = await client.sample_batch("queue", 3)
            got.extend(batch.data[0].ravel().tolist())
        except asyncio.CancelledError as error:
            got.extend(float(it.data[0][0]) for it in getattr(error, "samples", ()))
            raise

    async with aio.Client(f"localhost:{server.port}") as client:
        written = 0
        for _ in range(300):
            tasks = [asyncio.create_task(sample(client)) for _ in range(3)]
            for _ in range(generator.integers(0, 3)):
                await asyncio.sleep(0)
            rows = int(generator.integers(1, 12))
            await client.insert_batch(
                [np.arange(written, written + rows, dtype=float)], {"queue": 1.0}
            )
            written += rows
            for _ in range(generator.integers(0, 4)):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        left = (await client.server_info())["queue"].current_size
        while left:
            batch = await client.sample_batch("queue", left)
            got.extend(batch.data[0].ravel().tolist())
            left -= len(batch.data[0])
        assert sorted(got) == list(range(written))


SIGNALS = """
    import asyncio, sys
    from reverb import aio
    from support.aio_tables import WAITS

    async def main():
        count, *_, waits = WAITS[sys.argv[2]]
        async with aio.Client(sys.argv[1]) as client:
            tasks = [asyncio.create_task(waits(client)) for _ in range(count)]
            await asyncio.sleep(0.1)
            print("waits", flush=True)
            await asyncio.wait(tasks)

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.fixture(params=WAITS)
def waiting(request, start):
    """The kind of what waits, a server for it, and a function that waits until it does."""
    server = start(*tables(), reverb.Table.queue("full", 1))
    watcher = server.localhost_client()
    watcher.insert([9.0], {"full": 1.0})
    _, num_samples, num_inserts, _ = WAITS[request.param]

    def all_wait():
        seen = num_waiting(watcher)[0], num_waiting(watcher, "full")[1]
        return seen == (num_samples, num_inserts)

    return request.param, server, all_wait


def test_ctrl_c_ends_a_program_that_waits(waiting):
    kind, server, all_wait = waiting
    # Seen from that program, every server is remote.
    with Program(SIGNALS, f"localhost:{server.port}", kind) as program:
        assert program.line() == "waits"
        wait_until(all_wait)
        program.signal(signal.SIGINT)
        assert program.line() == "interrupted"
        assert program.ended() == 0
        # The log counts what a writer has not confirmed.
        assert bool(program.errors) == kind.endswith("writer")
    wait_until(lambda: num_waiting(server.localhost_client())[0] == 0)


async def test_what_waits_hears_that_the_server_is_gone(waiting, path):
    kind, server, all_wait = waiting
    count, *_, waits = WAITS[kind]
    address = f"{HOSTS[path]}:{server.port}"
    async with aio.Client(address, connect_timeout_s=0.5) as client:
        tasks = [asyncio.create_task(waits(client)) for _ in range(count)]
        await until(all_wait)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        stopping.join()
        assert {type(it) for it in results} == {errors.UnavailableError}
        assert all(address in str(it) for it in results)
