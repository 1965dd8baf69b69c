# SPDX-License-Identifier: Apache-2.0
"""The memory limit of a batch, and the error of a larger one."""

import asyncio
import functools

import numpy as np
import pytest

import reverb
from reverb import aio, testing
from reverb.errors import InvalidArgumentError, ResourceExhaustedError
from support.hosts import HOSTS

LENGTHS = [3, 500, 2]


@pytest.fixture
def client(serve):
    client = serve(testing.table("t", sampler=reverb.selectors.Fifo(), max_size=100))
    with client.trajectory_writer(max(LENGTHS)) as writer:
        for length in LENGTHS:
            for step in range(length):
                writer.append({"x": np.full(2, step % 256, np.uint8)})
            writer.create_item("t", 1.0, {"x": writer.history["x"][-length:]})
        writer.flush()
    return client


def next_of(iterator):
    with iterator:
        return next(iter(iterator))


def of_aio(client, batch_size=3, **options):
    async def sample():
        async with aio.Client(client.server_address) as twin:
            return await twin.sample_batch("t", batch_size, **options)

    return asyncio.run(sample())


WAYS = {
    "Client": lambda client, **options: client.sample_batch("t", 3, **options),
    "aio.Client": of_aio,
    "batches": lambda client, **options: next_of(reverb.batches(client, "t", 3, **options)),
    "batches, transformed": lambda client, **options: next_of(
        reverb.batches(client, "t", 3, transform=lambda it: it, **options)
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_above_its_limit_names_the_longest_item(client, way):
    sample = functools.partial(WAYS[way], client, distinct=True)
    longest = int(client.sample_batch("t", 3, ragged="packed", distinct=True).info.key[1])
    sample(ragged="pad", max_batch_bytes=3000)
    with pytest.raises(ResourceExhaustedError) as raised:
        sample(ragged="pad", max_batch_bytes=2999)
    text = str(raised.value)
    assert "takes 3000 bytes, more than max_batch_bytes, 2999" in text
    assert f"the longest item, {longest}, has 500 steps" in text
    assert 'ragged="packed"' in text
    assert sample(ragged="packed", max_batch_bytes="1010B").info.key.shape == (3,)
    with pytest.raises(ResourceExhaustedError, match="takes 1010 bytes"):
        sample(ragged="packed", max_batch_bytes=1009)


def test_items_that_were_sampled_come_with_the_error(client):
    with pytest.raises(ResourceExhaustedError) as raised:
        client.sample_batch("t", 3, ragged="pad", distinct=True, max_batch_bytes=10)
    assert [len(sample.data[0]) for sample in raised.value.samples] == LENGTHS


NUM_LARGE = 24
LARGE = 1 << 20


def large_items(start, **options):
    """A client over the network of a table whose items do not fit into one message."""
    server = start(testing.table("t", max_size=NUM_LARGE, **options))
    client = reverb.Client(f"{HOSTS['remote']}:{server.port}")
    noise = np.random.default_rng(0)
    for _ in range(NUM_LARGE):
        client.insert_batch({"x": noise.integers(0, 255, (1, LARGE), np.uint8)}, {"t": 1.0})
    return client


FORMS = {"error": {}, "pad": {"ragged": "pad"}, "packed": {"ragged": "packed"}}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_batch_is_refused_before_all_of_it_is_gathered(start, form):
    client = large_items(start)
    with pytest.raises(ResourceExhaustedError, match=r"takes at least \d+ bytes, more") as raised:
        client.sample_batch("t", NUM_LARGE, max_batch_bytes=4 * LARGE, **form)
    assert 1 <= len(raised.value.samples) < NUM_LARGE
    keys = [sample.info.key for sample in client.scan("t")]
    with pytest.raises(ResourceExhaustedError):
        client.fetch("t", keys, max_batch_bytes=4 * LARGE, **form)


def test_items_that_leave_their_table_all_come_with_the_error(start):
    client = large_items(start, max_times_sampled=1)
    with pytest.raises(ResourceExhaustedError) as raised:
        client.sample_batch("t", NUM_LARGE, max_batch_bytes=4 * LARGE)
    assert len(raised.value.samples) == NUM_LARGE
    assert client.server_info()["t"].current_size == 0


def test_memory_of_the_program_is_not_counted(client):
    out = {"x": np.zeros((3, 500, 2), np.uint8)}
    client.sample_batch("t", 3, ragged="pad", distinct=True, out=out, max_batch_bytes=1)


def test_batches_of_a_sampler_have_the_limit(serve):
    client = serve(testing.table("t", max_size=100))
    client.insert([np.zeros(10, np.uint8)], {"t": 1.0})
    batches = client.batch_sampler("t", 4, max_batch_bytes=39)
    with batches, pytest.raises(ResourceExhaustedError, match="takes 40 bytes"):
        next(batches)
    with client.batch_sampler("t", 4, max_batch_bytes=40) as batches:
        next(batches)


def test_parts_of_several_tables_have_the_limit_together(serve):
    client = serve(testing.table("t"), testing.table("u"))
    client.insert([np.zeros(10, np.uint8)], {"t": 1.0, "u": 1.0})
    with reverb.batches(client, {"t": 1, "u": 1}, 4, max_batch_bytes=40) as batches:
        next(batches)
    too_much = reverb.batches(client, {"t": 1, "u": 1}, 4, max_batch_bytes=39)
    with too_much, pytest.raises(ResourceExhaustedError, match="takes 40 bytes"):
        next(too_much)


@pytest.mark.parametrize("value", [0, -1, "no size", "101%"])
def test_limits_that_are_none(client, value):
    with pytest.raises(InvalidArgumentError, match="max_batch_bytes must be"):
        client.sample_batch("t", 1, max_batch_bytes=value)


@pytest.mark.parametrize("value", [1e9, [4096]])
def test_limits_of_another_type(client, value):
    with pytest.raises(TypeError, match="max_batch_bytes must be a number of bytes, a size such"):
        client.sample_batch("t", 1, max_batch_bytes=value)
