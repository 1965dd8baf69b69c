# SPDX-License-Identifier: Apache-2.0
"""`window=` of calls that are awaited: rows are steps of items, as with the blocking client."""

import asyncio

import numpy as np
import pytest

import reverb
from reverb import aio, errors, testing
from support.hosts import HOSTS
from support.waiting import wait_until

LENGTHS = (3, 12, 30)
WINDOW = reverb.Window(6, before=2, pad="left")
# Batches that the core fetches, and those that a thread of Python fetches.
WAYS = {"core": {}, "thread": {"transform": lambda batch: batch}}


def steps_of(item, length):
    at = np.arange(length)
    return {"double": 2.0 * (100 * item + at), "step": 100 * item + at}


def make_table():
    signature = {
        "double": reverb.specs.TensorSpec([None], np.float64),
        "step": reverb.specs.TensorSpec([None], np.int64),
    }
    return testing.table("t", sampler=reverb.selectors.Uniform(), signature=signature)


@pytest.fixture
def client(start, path):
    """A client of a table with items of `LENGTHS`."""
    server = start(make_table())
    for item, length in enumerate(LENGTHS):
        server.localhost_client().insert_sequence(steps_of(item, length), {"t": 1.0})
    return aio.Client(f"{HOSTS[path]}:{server.port}")


def check(batch, step=None):
    """Compares the rows of a batch with slices of the items."""
    step = batch.data["step"] if step is None else step
    start = batch.window_start
    places = start[:, None] + np.arange(8)
    lengths = np.array(LENGTHS)[step[:, 2] // 100]
    assert (lengths >= 6).all()
    assert np.array_equal(step % 100, places.clip(0))
    assert np.array_equal(batch.window_mask, places >= 0)
    assert np.array_equal(batch.num_windows, lengths - 5)
    fields = batch.window_start, batch.num_windows, batch.window_mask
    assert [it.dtype for it in fields] == [np.int32, np.int32, np.bool_]


async def test_a_batch(client):
    options = {"unpack_as_table_signature": True}
    batch = await client.sample_batch("t", 64, window=WINDOW, **options)
    check(batch)
    assert np.array_equal(batch.data["double"], 2.0 * batch.data["step"])
    spans = reverb.Window(6, before=2, pad="left", spans={"double": (0, 1)})
    batch = await client.sample_batch("t", 64, window=spans, **options)
    check(batch)
    assert np.array_equal(batch.data["double"], 2.0 * batch.data["step"][:, 2:3])
    assert (reverb.importance_weights(batch, 1.0, "batch") <= 1).all()


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
async def test_batches(client, options):
    found = 0
    async with client.batches("t", 16, window=WINDOW, **options) as batches:
        async for batch in batches:
            check(batch)
            found += 1
            if found == 5:
                break


async def test_a_batch_sampler(client):
    found = 0
    options = {"window": WINDOW, "columns": ["step"]}
    async with client.batch_sampler("t", 16, **options) as batches:
        async for batch in batches:
            check(batch, batch.data[0])
            found += 1
            if found == 5:
                break


async def test_others_run_while_one_waits_for_a_window(start):
    server = start(make_table())
    watcher = server.localhost_client()
    loop = asyncio.get_running_loop()
    async with aio.Client(f"{HOSTS['remote']}:{server.port}") as client:
        await client.insert_sequence(steps_of(0, 3), {"t": 1.0})
        with pytest.raises(errors.DeadlineExceededError, match="the longest has 3"):
            await client.sample_batch("t", 2, window=reverb.Window(6), timeout_ms=50)
        task = asyncio.ensure_future(client.sample_batch("t", 2, window=reverb.Window(6)))
        waiting = lambda: watcher.status().tables["t"].sampling.waiting == 1  # noqa: E731
        await loop.run_in_executor(None, wait_until, waiting)
        await client.insert_sequence(steps_of(1, 6), {"t": 1.0})
        batch = await task
        assert batch.window_start.tolist() == [0, 0]


async def test_an_argument_of_another_type(client):
    text = r"window must be a reverb\.Window, got int"
    with pytest.raises(TypeError, match=text):
        await client.sample_batch("t", 2, window=6)
    with pytest.raises(TypeError, match=text):
        client.batches("t", 2, window=6)
    with pytest.raises(TypeError, match=text):
        await anext(client.batch_sampler("t", 2, window=6))
