# SPDX-License-Identifier: Apache-2.0
"""Calls that are awaited, to servers that refuse them, to groups of servers, and to none."""

import asyncio

import grpc
import numpy as np
import pytest

import reverb
from reverb import aio, errors
from support.aio_tables import tables
from support.hosts import HOSTS
from support.waiting import DEADLINE_S
from support.wire.refusing_server import RefusingServer

CALLS = {
    "server_info": lambda client: client.server_info(),
    "reset": lambda client: client.reset("table"),
    "mutate_priorities": lambda client: client.mutate_priorities("table", deletes=[1]),
    "update_priorities": lambda client: client.update_priorities("table", [1], [1.0]),
    "checkpoint": lambda client: client.checkpoint(),
    "tables": lambda client: client.tables(),
    "size": lambda client: client.size("table"),
    "checkpoint_status": lambda client: client.checkpoint_status(),
    "status": lambda client: client.status(),
    "diagnose": lambda client: client.diagnose("table"),
    "configure_table": lambda client: client.configure_table("table", max_size=5),
    "configure_tables": lambda client: client.configure_tables({"table": reverb.TableChange()}),
    "pause_table": lambda client: client.pause_table("table"),
    "resume_table": lambda client: client.resume_table("table"),
    "rate_limiter_off": lambda client: client.rate_limiter_off("table").__aenter__(),
    "drain": lambda client: client.drain(),
    "directory": lambda client: client.directory(),
    "sample": lambda client: anext(client.sample("table")),
    "sample_batch": lambda client: client.sample_batch("table", 2),
    "scan": lambda client: anext(client.scan("table")),
    "fetch": lambda client: client.fetch("table", [1]),
    "delete_items": lambda client: client.delete_items("table", [1]),
    "insert": lambda client: client.insert([1], {"table": 1.0}),
    "insert_batch": lambda client: client.insert_batch([np.arange(2)], {"table": 1.0}),
    "trajectory_writer": lambda client: client.trajectory_writer(1).__aenter__(),
    "batched_trajectory_writer": lambda client: client.batched_trajectory_writer(2, 1).__aenter__(),
    "sequence_writer": lambda client: client.sequence_writer("table", 1).__aenter__(),
    "batch_sampler": lambda client: anext(client.batch_sampler("table", 2)),
}


def test_every_call_of_a_client_is_tried():
    methods = {name for name, it in vars(aio.Client).items() if name[0] != "_" and callable(it)}
    # The last one is asked of a group.
    assert methods - {"close", "shard_info"} == set(CALLS)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_refused_call_raises_its_class(call):
    async def main(address):
        async with aio.Client(address, connect_timeout_s=40) as client:
            await call(client)

    with (
        RefusingServer(grpc.StatusCode.PERMISSION_DENIED, "ask the owner") as address,
        pytest.raises(errors.PermissionDeniedError, match="ask the owner"),
    ):
        asyncio.run(main(address))


def test_a_group_of_servers(start):
    servers = [start(*tables()) for _ in range(2)]
    seeds = ",".join(f"{HOSTS['remote'].rpartition('/')[2]}:{it.port}" for it in servers)

    async def main():
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

    asyncio.run(main())


def test_no_server():
    async def main():
        async with aio.Client("localhost:1", connect_timeout_s=0.2) as client:
            calls = [client.sample_batch("table", 1) for _ in range(20)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(it) for it in results} == {errors.UnavailableError}
            assert all("localhost:1" in str(it) for it in results)

    asyncio.run(main())
