# SPDX-License-Identifier: Apache-2.0
"""Calls that are awaited, to servers that refuse them, to groups of servers, and to none."""

import asyncio

import grpc
import numpy as np
import pytest

from reverb import aio, errors
from support.aio_tables import tables
from support.client_calls import CALLS, INSERTS, OF_ITEMS, ROLLOUTS
from support.hosts import HOSTS
from support.waiting import DEADLINE_S
from support.wire.refusing_server import RefusingServer

AWAITED = {
    **CALLS,
    **INSERTS,
    **ROLLOUTS,
    "open_item": lambda client: client.open_item("table").__aenter__(),
    "rate_limiter_off": lambda client: client.rate_limiter_off("table").__aenter__(),
    "sample": lambda client: anext(client.sample("table")),
    "scan": lambda client: anext(client.scan("table")),
    "trajectory_writer": lambda client: client.trajectory_writer(1).__aenter__(),
    "batched_trajectory_writer": lambda client: client.batched_trajectory_writer(2, 1).__aenter__(),
    "sequence_writer": lambda client: client.sequence_writer("table", 1).__aenter__(),
    "batch_sampler": lambda client: anext(client.batch_sampler("table", 2)),
    "batches": lambda client: anext(client.batches("table", 2)),
}


def test_every_call_of_a_client_is_tried():
    methods = {name for name, it in vars(aio.Client).items() if name[0] != "_" and callable(it)}
    # The last one is asked of a group.
    assert methods - OF_ITEMS - {"close", "shard_info"} == set(AWAITED)


@pytest.mark.parametrize("call", AWAITED.values(), ids=AWAITED)
def test_a_refused_call_raises_its_class(call):
    async def main(address):
        async with aio.Client(address, connect_timeout_s=40) as client:
            await call(client)

    with (
        RefusingServer(grpc.StatusCode.PERMISSION_DENIED, "ask the owner") as address,
        pytest.raises(errors.PermissionDeniedError, match="ask the owner"),
    ):
        asyncio.run(main(address))


async def test_a_group_of_servers(start):
    servers = [start(*tables()) for _ in range(2)]
    seeds = ",".join(f"{HOSTS['remote'].rpartition('/')[2]}:{it.port}" for it in servers)
    async with aio.Client(f"shards:///{seeds}", connect_timeout_s=DEADLINE_S) as client:
        await client.insert_batch([np.arange(20.0)], {"queue": 1.0})
        waiting = [asyncio.create_task(client.sample_batch("queue", 1)) for _ in range(30)]
        done, pending = await asyncio.wait(waiting, timeout=1)
        for task in pending:
            task.cancel()
        await asyncio.wait(waiting)
        assert sorted(float(it.result().data[0][0, 0]) for it in done) == list(range(20))
        assert [it.state for it in await client.shard_info()] == ["up", "up"]
        assert client.updates_missed == 0


async def test_no_server():
    async with aio.Client("localhost:1", connect_timeout_s=0.2) as client:
        calls = [client.sample_batch("table", 1) for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(it) for it in results} == {errors.UnavailableError}
        assert all("localhost:1" in str(it) for it in results)
