# SPDX-License-Identifier: Apache-2.0
"""Writers whose waits are awaited: the batched one and the one of sequences."""

import asyncio

import numpy as np
import pytest

import reverb
from reverb import aio, errors
from support.hosts import HOSTS
from support.waiting import DEADLINE_S


async def batched(client, table="table", **options):
    """A batched writer with one item for each of two environments."""
    writer = await client.batched_trajectory_writer(2, 1, **options)
    writer.append([np.array([1.0, 2.0])])
    await writer.create_items(table, 1.0, [writer.history[0][-1:]])
    return writer


async def sequence(client, table="table", **options):
    """A sequence writer with one item."""
    writer = await client.sequence_writer(table, 1, **options)
    await writer.append([1.0])
    return writer


WRITERS = {"batched": batched, "sequence": sequence}


@pytest.fixture(params=WRITERS.values(), ids=WRITERS)
def write(request):
    """Makes a writer with an item or two: `writer = await write(client, table)`."""
    return request.param


async def test_a_batched_writer_is_as_its_twin(client, watcher):
    async with client.batched_trajectory_writer(3, 2, validate_items=False) as writer:
        assert writer.batch_size == 3
        writer.configure((0,), num_keep_alive_refs=4, max_chunk_length=2)
        for step in range(4):
            writer.append([np.arange(3.0) + 10 * step], where=[True, True, step != 1])
            created = await writer.create_items(
                "table", [1.0, 2.0, 3.0], [writer.history[0][-2:]], where=None
            )
            assert created == [0, 2, 3, 3][step]
            if step == 2:
                writer.end_episode([False, True, False], clear_buffers=False)
        assert writer.episode_steps.tolist() == [4, 1, 3]
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        writer.append([np.zeros(3)])
    items = [(item.data[0].tolist(), item.info.priority) for item in watcher.scan("table")]
    with reverb.Server([reverb.Table.queue("table", 20)]) as server:
        client = reverb.Client(f"localhost:{server.port}")
        with client.batched_trajectory_writer(3, 2, validate_items=False) as writer:
            writer.configure((0,), num_keep_alive_refs=4, max_chunk_length=2)
            for step in range(4):
                writer.append([np.arange(3.0) + 10 * step], where=[True, True, step != 1])
                writer.create_items("table", [1.0, 2.0, 3.0], [writer.history[0][-2:]])
                if step == 2:
                    writer.end_episode([False, True, False], clear_buffers=False)
        twins = [(item.data[0].tolist(), item.info.priority) for item in client.scan("table")]
    assert items == twins
    assert len(items) == 8


async def test_a_sequence_writer_is_as_its_twin(client, watcher):
    async with client.sequence_writer(["table", "queue"], 2, batch_size=2) as writer:
        assert writer.batch_size == 2
        counts = [
            await writer.append(
                {"x": np.array([step, -step])},
                is_last=[step == 1, False],
                priorities=[1.0, 2.0],
            )
            for step in range(3)
        ]
        assert counts == [0, 4, 2]  # In two tables.
        assert writer.episode_steps.tolist() == [1, 3]
        await writer.end_episode(where=[False, True])
        assert writer.episode_steps.tolist() == [1, 0]
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        await writer.append({"x": np.zeros(2, int)})
    for table in ("table", "queue"):
        rows = [(item.data[0].tolist(), item.info.priority) for item in watcher.scan(table)]
        assert rows == [([0, 1], 1.0), ([0, -1], 2.0), ([-1, -2], 2.0)]


async def test_episodes_as_items(client, watcher):
    writer = await client.sequence_writer(
        "queue", None, max_sequence_length=3, drop_long_episodes=True
    )
    for length in (2, 5, 3):
        for step in range(length):
            await writer.append([step], is_last=step == length - 1)
    assert writer.num_dropped_episodes == 1
    await writer.flush(timeout_ms=60_000)
    await writer.close()
    assert [len(item.data[0]) for item in watcher.scan("queue")] == [2, 3]


async def test_arguments_are_checked_before_anything_is_awaited(client):
    with pytest.raises(errors.InvalidArgumentError, match="batch_size must be at least 1"):
        client.batched_trajectory_writer(0, 1)
    with pytest.raises(errors.InvalidArgumentError, match="max_sequence_length must be given"):
        client.sequence_writer("table", None)
    with pytest.raises(errors.TableNotFoundError, match="no such"):
        await client.sequence_writer("no such", 1)
    writer = await client.sequence_writer("table", 1)
    with pytest.raises(errors.InvalidArgumentError, match="block_until_num_items"):
        await writer.flush(-1)


async def test_a_flush_ends_after_its_timeout_and_when_it_is_cancelled(start, path, write):
    server = start(reverb.Table.queue("full", 1))
    async with aio.Client(f"{HOSTS[path]}:{server.port}", connect_timeout_s=DEADLINE_S) as client:
        await client.insert([9.0], {"full": 1.0})
        writer = await write(client, "full")
        with pytest.raises(errors.DeadlineExceededError, match="flush"):
            await writer.flush(timeout_ms=20)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(writer.flush(), 0.05)
        # Its items are still queued, and go in when there is room.
        flushing = asyncio.create_task(writer.flush())
        expected = [9.0, 1.0, 2.0] if write is batched else [9.0, 1.0]
        batch = await client.sample_batch("full", len(expected))
        assert batch.data[0].ravel().tolist() == expected
        await flushing


async def test_a_cancelled_block_closes_and_does_not_flush(start, write):
    server = start(reverb.Table.queue("full", 1))
    async with aio.Client(f"localhost:{server.port}", connect_timeout_s=DEADLINE_S) as client:
        await client.insert([9.0], {"full": 1.0})
        entered = asyncio.Event()
        writer = await write(client, "full")

        async def block():
            async with writer:
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(block())
        await entered.wait()
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=DEADLINE_S)
        assert done, "it waits for the full table"
        with pytest.raises(errors.FailedPreconditionError, match="closed"):
            await writer.flush()


# A writer of one environment with little room, and what adds an item of some values.
LIMITED = {
    "trajectory": (
        lambda client, **limit: client.trajectory_writer(1, **limit),
        lambda writer, values: writer.append([values]),
        lambda writer: writer.create_item("full", 1.0, [writer.history[0][-1:]]),
    ),
    "batched": (
        lambda client, **limit: client.batched_trajectory_writer(1, 1, **limit),
        lambda writer, values: writer.append([values[None]]),
        lambda writer: writer.create_items("full", 1.0, [writer.history[0][-1:]]),
    ),
    "sequence": (
        lambda client, **limit: client.sequence_writer("full", 1, **limit),
        lambda writer, values: writer.append([values]),
        None,
    ),
}


@pytest.mark.parametrize("name", LIMITED)
async def test_a_writer_at_its_limit_does_not_block_the_loop(start, name):
    server = start(reverb.Table.queue("full", 1))
    make, append, create = LIMITED[name]
    async with aio.Client(f"localhost:{server.port}", connect_timeout_s=DEADLINE_S) as client:
        created = 0

        async def write():
            nonlocal created
            async with make(client, max_pending_bytes="64KiB") as writer:
                for step in range(100):
                    values = np.random.default_rng(step).integers(0, 256, 5000, np.uint8)
                    appended = append(writer, values)
                    await (appended if create is None else create(writer))
                    created += 1

        task = asyncio.create_task(write())
        await asyncio.sleep(0.3)
        # 13 of them fit, however fast it is.
        assert created < 100
        assert not task.done()
        assert len([it async for it in client.sample("full", 100)]) == 100
        await task


@pytest.mark.parametrize("form", ["{},{}", "shards:///{},{}"])
async def test_a_writer_of_several_servers(start, write, form):
    servers = [start(reverb.Table.queue("table", 100)) for _ in range(2)]
    hosts = [f"{HOSTS['remote'].rpartition('/')[2]}:{it.port}" for it in servers]
    async with aio.Client(form.format(*hosts), connect_timeout_s=DEADLINE_S) as client:
        for _ in range(4):
            async with await write(client):
                pass
    sizes = [reverb.Client(host).server_info()["table"].current_size for host in hosts]
    assert sum(sizes) == (8 if write is batched else 4)


async def test_a_closed_client_opens_no_writer(start, write):
    server = start(reverb.Table.queue("table", 100))
    client = aio.Client(f"localhost:{server.port}")
    await client.server_info()
    await client.close()
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        await write(client)
