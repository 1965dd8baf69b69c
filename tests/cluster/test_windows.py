# SPDX-License-Identifier: Apache-2.0
"""Windows of a group: each window of all shards, with the probability that is told."""

import contextlib

import numpy as np
import pytest

import reverb
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.hosts import on_both_hosts

WINDOW = reverb.Window(5)
# Lengths of the items of each shard; one of them has no window.
LENGTHS = ((3, 30, 8), (4, 2), (5, 90))


def table(name, sampler, **options):
    limiter = reverb.rate_limiters.MinSize(1)
    return reverb.Table(
        name, sampler, reverb.selectors.Fifo(), options.get("max_size", 99), limiter, seed=3
    )


@pytest.fixture
def servers():
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                reverb.Server(
                    [
                        table("items", reverb.selectors.Uniform()),
                        table("steps", reverb.selectors.Uniform(over="steps")),
                    ]
                )
            )
            for _ in LENGTHS
        ]


@pytest.fixture
def client(servers, host):
    places = ",".join(f"{host.rpartition('/')[2]}:{server.port}" for server in servers)
    client = reverb.Client(f"shards:///{places}", connect_timeout_s=10)
    number = 0
    for server, lengths in zip(servers, LENGTHS, strict=True):
        for length in lengths:
            data = [number * 1_000 + np.arange(length)]
            server.localhost_client().insert_sequence(data, {"items": 1.0, "steps": 1.0})
            number += 1
    return client


def draws(client, name, count):
    """Keys of windows, their numbers, and the probabilities that are told for them."""
    batch = client.sample_batch(name, count, window=WINDOW)
    data = batch.data[0]
    assert data.shape == (count, 5)
    assert (np.diff(data, axis=1) == 1).all()
    assert np.array_equal(data[:, 0] % 1_000, batch.window_start)
    return data[:, 0], batch.info.probability / batch.num_windows


@on_both_hosts
def test_each_window_of_the_group_is_as_likely_over_steps(client):
    lengths = [length for of_shard in LENGTHS for length in of_shard]
    num_windows = sum(max(0, length - 4) for length in lengths)
    draws(client, "steps", 2_000)  # Each shard tells with its items how many windows it has.
    starts, told = draws(client, "steps", 20_000)
    assert np.allclose(told, 1 / num_windows)
    values, counts = np.unique(starts, return_counts=True)
    assert len(values) == num_windows
    mean = 20_000 / num_windows
    assert np.abs(counts - mean).max() < 6 * np.sqrt(mean)


@on_both_hosts
def test_a_shard_without_the_window_is_left_out(client):
    for _ in range(3):
        starts, _ = draws(client, "items", 100)
        assert set(starts // 1_000) <= {1, 2, 5, 6}


@on_both_hosts
def test_a_request_waits_for_a_window_at_any_shard(client, servers, background):
    window = reverb.Window(200)
    with pytest.raises(DeadlineExceededError, match="has a window of 200 steps"):
        client.sample_batch("items", 2, window=window, timeout_ms=400)
    call = background(lambda: client.sample_batch("items", 2, window=window))
    servers[1].localhost_client().insert_sequence([np.arange(250)], {"items": 1.0})
    assert call.result().data[0].shape == (2, 200)


def test_a_group_of_full_tables_without_the_window_is_an_error():
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(reverb.Server([table("t", reverb.selectors.Uniform(), max_size=1)]))
            for _ in range(2)
        ]
        for server in made:
            server.localhost_client().insert_sequence([np.arange(3)], {"t": 1.0})
        places = ",".join(f"localhost:{server.port}" for server in made)
        client = reverb.Client(f"shards:///{places}", connect_timeout_s=10)
        with pytest.raises(InvalidArgumentError, match="The table is full"):
            client.sample_batch("t", 2, window=WINDOW)


def test_a_refusal_of_distinct_items_says_nothing_of_windows():
    """A shard with too few items was taken for one without the window, and left out."""
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(reverb.Server([table("t", reverb.selectors.Uniform())]))
            for _ in range(2)
        ]
        for shard, (server, count) in enumerate(zip(made, (10, 20), strict=True)):
            for _ in range(count):
                data = [1_000 * shard + np.arange(9)]
                server.localhost_client().insert_sequence(data, {"t": 1.0})
        places = ",".join(f"localhost:{server.port}" for server in made)
        client = reverb.Client(f"shards:///{places}", connect_timeout_s=10)
        for _ in range(20):
            with contextlib.suppress(InvalidArgumentError):
                client.sample_batch("t", 15, window=WINDOW, distinct=True)
            numbers = client.sample_batch("t", 500, window=WINDOW).data[0][:, 0] // 1_000
            assert set(numbers) == {0, 1}
