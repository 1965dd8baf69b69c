# SPDX-License-Identifier: Apache-2.0
"""`compression`: a client and its writers compress chunks where it pays, or store them as they are.

How the buffers of Stable-Baselines3 and TorchRL choose is tested with those libraries.
"""

import asyncio
import copy
import functools
import inspect
import pickle

import numpy as np
import pytest

import reverb
from reverb import aio, testing
from reverb.errors import InvalidArgumentError
from support import one_step_items
from support.hosts import HOSTS
from support.waiting import DEADLINE_S

# Frames of one color each. Zeros are compressed to a twentieth.
FRAME = (40, 50)
NUM_STEPS = 6
FRAMES = np.repeat(np.arange(NUM_STEPS, dtype=np.uint8), 2000).reshape(NUM_STEPS, *FRAME)


def each_frame(write, **given):
    """Writes items of one frame each by a writer of its own."""

    @functools.wraps(write)
    def run(client, **options):
        for frame in FRAMES:
            write(client, [frame], **given, **options)

    return run


def each_frame_awaited(write):
    @functools.wraps(write)
    async def run(client, **options):
        for frame in FRAMES:
            await write(client, [frame], **options)

    return run


def insert_batch(client):
    client.insert_batch([FRAMES], {"table": 1.0})


def insert_sequence(client):
    client.insert_sequence([FRAMES], {"table": 1.0})


def constant(client, step, **options):
    with client.trajectory_writer(1, **options) as writer:
        writer.append([0])
        writer.create_item("table", 1.0, step)


insert = each_frame(one_step_items.insert)
# Those that take the client's compression alone, and those that have an argument.
INSERTS = {it.__name__: it for it in (insert, insert_batch, insert_sequence)}
OF_ONE_STEP = (
    one_step_items.trajectory,
    constant,
    one_step_items.batched,
    one_step_items.sequence,
    one_step_items.legacy,
    one_step_items.patterns,
)
WRITERS = {it.__name__: each_frame(it) for it in OF_ONE_STEP}
WRITERS["differences"] = each_frame(one_step_items.legacy, delta_encoded=True)


async def awaited_inserts(client):
    for frame in FRAMES[:2]:
        await client.insert([frame], {"table": 1.0})
    await client.insert_batch([FRAMES[2:4]], {"table": 1.0})
    await client.insert_sequence([FRAMES[4:5]], {"table": 1.0})
    await client.insert_sequence([FRAMES[5:]], {"table": 1.0})


AWAITED_OF_ONE_STEP = (
    one_step_items.awaited_trajectory,
    one_step_items.awaited_batched,
    one_step_items.awaited_sequence,
)
AWAITED_WRITERS = {it.__name__: each_frame_awaited(it) for it in AWAITED_OF_ONE_STEP}
AWAITED = {"awaited_inserts": awaited_inserts} | AWAITED_WRITERS

PLACES = {"in_process": 1, "remote": 1, "group": 3}


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


@pytest.fixture
def servers(start, place):
    return [start(testing.table(max_size=NUM_STEPS)) for _ in range(PLACES[place])]


@pytest.fixture
def make(servers, place):
    """Makes a client of the servers: `client = make(compression="none")`."""

    def make(kind=reverb.Client, **options):
        host = HOSTS["in_process" if place == "in_process" else "remote"].rpartition("/")[2]
        address = ",".join(f"{host}:{server.port}" for server in servers)
        if place == "group":
            address = f"shards:///{address}"
        return kind(address, connect_timeout_s=DEADLINE_S, **options)

    return make


def stored(servers):
    """Bytes of the tables of all servers, and the frames of their items in order."""
    clients = [server.localhost_client() for server in servers]
    # Items of several steps give their frames one after another.
    frames = [
        frame
        for client in clients
        for sample in client.scan("table")
        for column in sample.data
        for frame in column.reshape(-1, *FRAME)
    ]
    num_bytes = sum(client.status().memory.tables for client in clients)
    return num_bytes, sorted(frames, key=lambda frame: int(frame[0, 0]))


def check(servers, compression):
    num_bytes, frames = stored(servers)
    assert np.array_equal(frames, FRAMES)
    if compression == "none":
        assert num_bytes > FRAMES.nbytes
    else:
        assert num_bytes < FRAMES.nbytes / 2


@pytest.mark.parametrize("compression", ["auto", "none"])
@pytest.mark.parametrize("write", (INSERTS | WRITERS).values(), ids=INSERTS | WRITERS)
def test_a_client_compresses_as_it_was_told(make, servers, write, compression):
    write(make(compression=compression))
    check(servers, compression)


@pytest.mark.parametrize("compression", ["auto", "none"])
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_writer_may_differ_from_its_client(make, servers, write, compression):
    other = {"auto": "none", "none": "auto"}[compression]
    client = make(compression=other)
    write(client, compression=compression)
    check(servers, compression)
    for server in servers:
        server.localhost_client().reset("table")
    insert(client)
    check(servers, other)


def awaited(make, write, given, **options):
    async def main():
        async with make(aio.Client, compression=given) as client:
            await write(client, **options)

    asyncio.run(main())


@pytest.mark.parametrize("compression", ["auto", "none"])
@pytest.mark.parametrize("write", AWAITED.values(), ids=AWAITED)
def test_an_awaited_client_compresses_as_it_was_told(make, servers, write, compression):
    awaited(make, write, compression)
    check(servers, compression)


@pytest.mark.parametrize("write", AWAITED_WRITERS.values(), ids=AWAITED_WRITERS)
def test_an_awaited_writer_may_differ_from_its_client(make, servers, write):
    awaited(make, write, "auto", compression="none")
    check(servers, "none")
    for server in servers:
        server.localhost_client().reset("table")
    awaited(make, write, "none", compression="auto")
    check(servers, "auto")


def test_without_an_argument_chunks_are_compressed(serve):
    client = serve(testing.table())
    insert(client)
    assert client.status().memory.tables < FRAMES.nbytes / 2


def test_every_maker_of_a_writer_has_the_argument():
    for kind in (reverb.Client, aio.Client):
        makers = [name for name in vars(kind) if name.endswith("writer")]
        assert len(makers) >= 3
        for name in makers:
            parameter = inspect.signature(getattr(kind, name)).parameters["compression"]
            assert parameter.kind is parameter.KEYWORD_ONLY, name
            assert parameter.default is None, name


@pytest.mark.parametrize("kind", [reverb.Client, aio.Client])
def test_copies_and_pickles_compress_like_the_client(start, kind):
    server = start(testing.table())
    made = kind(f"127.0.0.1:{server.port}", compression="none")
    for make in (copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))):
        client = make(made)
        if kind is aio.Client:
            asyncio.run(awaited_inserts(client))
        else:
            insert(client)
        check([server], "none")
        server.localhost_client().reset("table")


def test_a_client_of_the_server_compresses_as_it_was_told(start):
    server = start(testing.table())
    insert(server.localhost_client(compression="none"))
    check([server], "none")


@pytest.mark.parametrize("wrong", ["zip", "None", "", True, 1])
def test_another_value_is_refused(start, error_says, wrong):
    address = f"127.0.0.1:{start(testing.table()).port}"
    text = f'compression must be "auto" or "none", got {wrong!r}'
    client, awaited_client = reverb.Client(address), aio.Client(address)
    calls = [
        lambda: reverb.Client(address, compression=wrong),
        lambda: aio.Client(address, compression=wrong),
        *(lambda write=write: write(client, compression=wrong) for write in WRITERS.values()),
        lambda: awaited_client.trajectory_writer(1, compression=wrong),
        lambda: awaited_client.batched_trajectory_writer(1, 1, compression=wrong),
        lambda: awaited_client.sequence_writer("table", 1, compression=wrong),
    ]
    for call in calls:
        error_says(call, InvalidArgumentError, text)
