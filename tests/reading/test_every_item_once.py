# SPDX-License-Identifier: Apache-2.0
"""A queue that is emptied by all ways to sample, one after another: each item comes out once.

Calls that time out, that find items of different lengths, or that get fewer items than they asked
for, are among them. What an error carries in `samples` has come out, too.
"""

import asyncio
import contextlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import aio, testing
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.hosts import HOSTS
from support.waiting import DEADLINE_S

NUM_ITEMS = 30
# A group asks its shards in turn, each for up to 50 ms.
TIMEOUT_MS = 150


def queue():
    """A table whose items leave with their first sample."""
    return testing.table("queue", max_times_sampled=1)


def write(client, lengths, start=0):
    """Items `[T, 2]` whose values are their numbers."""
    for number, length in enumerate(lengths, start):
        with client.trajectory_writer(length) as writer:
            for _ in range(length):
                writer.append([np.full(2, number, np.int32)])
            writer.create_item("queue", 1.0, [writer.history[0][:]])


def numbers_of_items(column):
    return [int(np.ravel(item)[0]) for item in column]


def by_call(client, size, options):
    batch = client.sample_batch("queue", size, timeout_ms=TIMEOUT_MS, **options)
    return numbers_of_items(batch.data[0])


def by_await(client, size, options):
    async def program():
        async with aio.Client(client.server_address) as own:
            return await own.sample_batch("queue", size, timeout_ms=TIMEOUT_MS, **options)

    return numbers_of_items(asyncio.run(program()).data[0])


def by_sampler(client, size, options):
    async def program():
        found = []
        partial = options.get("partial", True)
        async with aio.Client(client.server_address) as own:
            batches = own.batch_sampler("queue", size, partial=partial, timeout_ms=TIMEOUT_MS)
            try:
                async for batch in batches:
                    found += numbers_of_items(batch.data[0])
            except (DeadlineExceededError, InvalidArgumentError) as error:
                found += numbers_of_samples(error)
        return found

    return asyncio.run(program())


def by_samples(client, size, options):
    found = []
    with contextlib.suppress(DeadlineExceededError):
        for sample in client.sample("queue", size, emit_timesteps=False, timeout_ms=TIMEOUT_MS):
            found.append(int(sample.data[0][0, 0]))
    return found


def ahead(client, size, options):
    """All batches until the timeout, so that none is lost in the queue of the iterator."""
    found = []
    with reverb.batches(client, "queue", size, end_after_ms=TIMEOUT_MS, **options) as iterator:
        try:
            for batch in iterator:
                found += numbers_of_items(batch.data[0])
        except (DeadlineExceededError, InvalidArgumentError) as error:
            found += numbers_of_samples(error)
    return found


def numbers_of_samples(error):
    return [int(np.ravel(sample.data[0])[0]) for sample in getattr(error, "samples", [])]


CALLS = st.tuples(
    st.sampled_from([by_call, by_call, by_await, by_sampler, by_samples, ahead]),
    st.integers(1, 12),
    st.fixed_dictionaries(
        {},
        optional={
            "partial": st.booleans(),
            "ragged": st.sampled_from(["error", "pad", "packed"]),
        },
    ),
)


@pytest.fixture(scope="module", params=[*HOSTS, "shards"])
def client(request):
    hosts = {"shards": HOSTS["remote"]} | HOSTS
    num_servers = 2 if request.param == "shards" else 1
    servers = [reverb.Server([queue()]) for _ in range(num_servers)]
    host = hosts[request.param].removeprefix("shards:///")
    addresses = ",".join(f"{host}:{server.port}" for server in servers)
    yield reverb.Client(f"shards:///{addresses}" if num_servers > 1 else addresses)
    for server in servers:
        server.stop()


@pytest.mark.parametrize("scheme", ["shards:///", "shards+grpc:///"])
def test_whole_batches_of_a_group_lose_nothing(scheme, start):
    """A group cannot give a batch as a whole or not at all, however its address is written."""
    servers = [start(queue()) for _ in range(2)]
    client = reverb.Client(scheme + ",".join(f"127.1:{server.port}" for server in servers))
    write(client, [2] * 5)
    found = ahead(client, 4, {"partial": False})
    found += by_samples(client, 5, {})
    assert sorted(found) == list(range(5))


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(1, 3), min_size=NUM_ITEMS, max_size=NUM_ITEMS)
    | st.just([2] * NUM_ITEMS),
    calls=st.lists(CALLS, max_size=6),
)
def test_each_item_comes_out_once(client, lengths, calls):
    write(client, lengths)
    found = []
    for call, size, options in calls:
        try:
            found += call(client, size, options)
        except (DeadlineExceededError, InvalidArgumentError) as error:
            found += numbers_of_samples(error)
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < NUM_ITEMS and time.monotonic() < deadline:
        found += by_samples(client, NUM_ITEMS, {})
    found += by_samples(client, 1, {})
    assert sorted(found) == list(range(NUM_ITEMS))


def test_the_error_of_one_shard_has_the_items_of_the_others(start):
    """Whichever of them answers first."""
    servers = [start(queue()) for _ in range(2)]
    shards = [reverb.Client(f"127.0.0.1:{server.port}") for server in servers]
    group = reverb.Client("shards:///" + ",".join(f"127.1:{it.port}" for it in servers))
    for _ in range(10):
        # Those of the first one cannot be stacked, so it keeps them.
        write(shards[0], [1, 2, 1, 2])
        write(shards[1], [2, 2, 2, 2], start=4)
        with pytest.raises(InvalidArgumentError, match="must have the same shapes") as caught:
            group.sample_batch("queue", 8)
        taken = numbers_of_samples(caught.value)
        # A group that has not heard of new items leaves them where they are.
        num_left = shards[1].server_info()["queue"].current_size
        left = by_samples(shards[1], num_left, {}) if num_left else []
        assert sorted([*taken, *left]) == [4, 5, 6, 7]
        assert [it.server_info()["queue"].current_size for it in shards] == [4, 0]
        assert sorted(by_samples(shards[0], 4, {})) == [0, 1, 2, 3]
