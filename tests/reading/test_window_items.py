# SPDX-License-Identifier: Apache-2.0
"""`Client.sample` with a window: items one at a time, each a random part of its steps."""

import asyncio

import numpy as np
import pytest

import reverb
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.hosts import on_both_hosts

LENGTHS = (3, 12, 30)
SIGNATURE = {
    "image": reverb.specs.TensorSpec([None, 2], np.uint8),
    "step": reverb.specs.TensorSpec([None], np.int64),
}
PADDED = reverb.Window(6, before=2, pad="both")


def steps_of(number, length):
    at = np.arange(length)
    return {"image": np.stack([at, at], axis=1).astype(np.uint8), "step": number * 100 + at}


def table(**options):
    limiter = reverb.rate_limiters.MinSize(1)
    options = {"max_size": 100, "signature": SIGNATURE, "seed": 5} | options
    fifo = reverb.selectors.Fifo()
    sampler = reverb.selectors.Uniform(over="steps")
    return reverb.Table("t", sampler, fifo, rate_limiter=limiter, **options)


def fill(client):
    for number, length in enumerate(LENGTHS):
        client.insert_sequence(steps_of(number, length), {"t": 1.0})


@pytest.fixture
def client(serve):
    client = serve(table())
    fill(client)
    return client


def items(client, count, **options):
    return list(client.sample("t", count, emit_timesteps=False, **options))


def check(samples, window=PADDED):
    """Compares each item with slices of NumPy; returns their numbers."""
    numbers = []
    for info, data in samples:
        image, step = data.values() if isinstance(data, dict) else data
        number = step[0] // 100
        length = LENGTHS[number]
        places = info.window_start + np.arange(window.num_steps)
        assert np.array_equal(info.window_mask, (places >= 0) & (places < length))
        assert np.array_equal(step, number * 100 + places.clip(0, length - 1))
        assert np.array_equal(image[:, 1], places.clip(0, length - 1))
        numbers.append(number)
    return numbers


class TestItems:
    def test_items_are_slices(self, client):
        samples = items(client, 300, window=PADDED)
        assert set(check(samples)) == {0, 1, 2}
        info = samples[0].info
        assert isinstance(info, reverb.WindowInfo)
        assert info[:5] == reverb.SampleInfo(*info[:5])
        assert type(info.window_start) is type(info.num_windows) is int
        assert {sample.info.num_windows for sample in samples} == set(LENGTHS)
        chances = {sample.info.probability / sample.info.num_windows for sample in samples}
        assert np.allclose(list(chances), 1 / sum(LENGTHS))

    def test_only_items_with_a_window(self, client):
        samples = items(client, 100, window=reverb.Window(8))
        assert set(check(samples, reverb.Window(8))) == {1, 2}
        assert all(sample.info.window_mask.all() for sample in samples)

    def test_nests_and_spans(self, client):
        samples = items(client, 20, window=PADDED, unpack_as_table_signature=True)
        assert list(samples[0].data) == ["image", "step"]
        check(samples)
        part = reverb.Window(6, before=2, spans={"image": (0, 1)})
        for sample in items(client, 20, window=part):
            assert [column.shape for column in sample.data] == [(1, 2), (8,)]
            assert sample.data[0][0, 0] == sample.info.window_start + 2

    def test_a_request_waits_for_a_window(self, client, background, until):
        window = reverb.Window(50)
        with pytest.raises(DeadlineExceededError, match="the longest has 30"):
            items(client, 2, window=window, timeout_ms=50)
        call = background(lambda: items(client, 2, window=window))
        until(lambda: client.status().tables["t"].sampling.waiting == 1)
        client.insert_sequence(steps_of(3, 50), {"t": 1.0})
        assert [sample.data[1][0] for sample in call.result()] == [300, 300]


def test_arguments(serve):
    client = serve(table())
    fill(client)
    with pytest.raises(InvalidArgumentError, match="emit_timesteps must be False with a window"):
        list(client.sample("t", 1, window=PADDED))
    with pytest.raises(TypeError, match=r"window must be a reverb.Window, got int"):
        items(client, 1, window=3)
    with pytest.raises(InvalidArgumentError, match="is no column of table t"):
        items(client, 1, window=reverb.Window(2, spans={"x": (0, 1)}))
    assert client.server_info()["t"].num_unique_samples == 0


@on_both_hosts
def test_asyncio(host, start):
    server = start(table())
    fill(server.localhost_client())

    async def program():
        async with reverb.aio.Client(f"{host}:{server.port}") as client:
            samples = client.sample("t", 50, emit_timesteps=False, window=PADDED)
            return [sample async for sample in samples]

    assert len(check(asyncio.run(program()))) == 50


@on_both_hosts
def test_a_group(host, start):
    places = [f"{host.rpartition('/')[2]}:{start(table()).port}" for _ in range(2)]
    client = reverb.Client("shards:///" + ",".join(places), connect_timeout_s=10)
    for number, length in enumerate(LENGTHS):
        reverb.Client(places[number % 2]).insert_sequence(steps_of(number, length), {"t": 1.0})
    samples = items(client, 300, window=reverb.Window(3))
    assert set(check(samples, reverb.Window(3))) == {0, 1, 2}
