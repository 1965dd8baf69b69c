# SPDX-License-Identifier: Apache-2.0
"""The tables of tests that await their calls, calls that wait for them, and whether they do."""

import asyncio

import numpy as np

import reverb
from reverb import testing
from support.waiting import DEADLINE_S


def tables():
    """A table that anybody may sample, and a queue."""
    return [
        testing.table(max_size=20),
        reverb.Table.queue("queue", max_size=2000),
    ]


def num_waiting(client, table="queue"):
    """How many requests to sample and to insert wait at the server."""
    status = client.status().tables[table]
    return status.sampling.waiting, status.inserting.waiting


async def until(condition):
    """Lets the event loop run until a condition holds."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.002)


async def _take(client):
    return await anext(client.batch_sampler("queue", 1))


async def _flush_batched(client):
    writer = await client.batched_trajectory_writer(2, 1)
    writer.append([np.zeros(2)])
    await writer.create_items("full", 1.0, [writer.history[0][-1:]])
    await writer.flush()


async def _flush_sequence(client):
    writer = await client.sequence_writer("full", 1)
    await writer.append([1.0])
    await writer.flush()


# What waits while "queue" is empty and "full" is full: how often at once, and how many requests for
# samples of the one and items for the other the server then sees.
WAITS = {
    "sample_batch": (50, 50, 0, lambda client: client.sample_batch("queue", 1)),
    "batch_sampler": (1, 1, 0, _take),
    "batched_writer": (1, 0, 2, _flush_batched),
    "sequence_writer": (1, 0, 1, _flush_sequence),
}
