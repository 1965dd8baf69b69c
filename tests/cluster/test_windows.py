# SPDX-License-Identifier: Apache-2.0
"""Windows of a group: each window of all shards, with the probability that is told."""

import contextlib
import re

import numpy as np
import pytest

import reverb
from reverb.command import main
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.hosts import on_both_hosts

WINDOW = reverb.Window(5)
# Lengths of the items of each shard; one of them has no window.
LENGTHS = ((3, 30, 8), (4, 2), (5, 90))


def table(name, sampler, **options):
    options = {"max_size": 99, "rate_limiter": reverb.rate_limiters.MinSize(1)} | options
    return reverb.Table(name, sampler, reverb.selectors.Fifo(), seed=3, **options)


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


class TestGroupOfTwo:
    """A group of two shards that a test fills as it likes."""

    @pytest.fixture
    def make(self, host):
        with contextlib.ExitStack() as stack:

            def make(**options):
                """Returns a client of the group, and one of each shard."""
                tables = [table("t", reverb.selectors.Uniform(), **options) for _ in range(2)]
                made = [stack.enter_context(reverb.Server([it])) for it in tables]
                name = host.rpartition("/")[2]
                places = ",".join(f"{name}:{server.port}" for server in made)
                client = reverb.Client(f"shards:///{places}", connect_timeout_s=10)
                return client, [server.localhost_client() for server in made]

            yield make

    @on_both_hosts
    def test_full_tables_without_the_window_are_an_error(self, make):
        client, shards = make(max_size=1)
        for shard in shards:
            shard.insert_sequence([np.arange(3)], {"t": 1.0})
        with pytest.raises(InvalidArgumentError, match="The table is full"):
            client.sample_batch("t", 2, window=WINDOW)

    @on_both_hosts
    def test_a_refusal_of_distinct_items_says_nothing_of_windows(self, make):
        """A shard with too few items was taken for one without the window, and left out."""
        client, shards = make()
        for number, (shard, count) in enumerate(zip(shards, (10, 20), strict=True)):
            for _ in range(count):
                shard.insert_sequence([1_000 * number + np.arange(9)], {"t": 1.0})
        for _ in range(20):
            with contextlib.suppress(InvalidArgumentError):
                client.sample_batch("t", 15, window=WINDOW, distinct=True)
            numbers = client.sample_batch("t", 500, window=WINDOW).data[0][:, 0] // 1_000
            assert set(numbers) == {0, 1}

    @on_both_hosts
    def test_items_that_cannot_be_stacked_are_no_missing_window(self, make):
        """The shard was taken for one without a window, and the request waited for another one."""
        client, shards = make(max_times_sampled=1)
        for width in (2, 2, 3, 3):
            shards[0].insert_sequence([np.zeros((9, width))], {"t": 1.0})
        for _ in range(3):
            with pytest.raises(InvalidArgumentError, match="must have the same shapes"):
                client.sample_batch("t", 4, window=WINDOW, timeout_ms=5_000)
        assert client.size("t") == 4

    @on_both_hosts
    def test_a_shard_without_a_window_leaves_distinct_ones_to_others(self, make):
        client, shards = make(max_size=3)
        for _ in range(3):
            shards[0].insert_sequence([np.arange(2)], {"t": 1.0})
            shards[1].insert_sequence([np.arange(9)], {"t": 1.0})
        for _ in range(5):
            batch = client.sample_batch("t", 3, window=WINDOW, distinct=True)
            assert len(set(batch.info.key)) == 3

    @on_both_hosts
    @pytest.mark.parametrize("options", [{}, {"max_times_sampled": 5}], ids=["stays", "leaves"])
    def test_why_tells_of_a_wait_for_a_window(self, make, options, background, until, capsys):
        client, shards = make(**options)
        for shard, length in zip(shards, (20, 30), strict=True):
            shard.insert_sequence([np.arange(length)], {"t": 1.0})

        def why():
            assert main(["why", client.server_address]) == 0
            return capsys.readouterr().out

        # The request goes to each shard as soon as that has a window.
        places = ((0, 50, "30"), (1, 80, "50"))
        for shard, length, longest in places[: 1 if options else 2]:
            window = reverb.Window(length)
            call = background(lambda window=window: client.sample_batch("t", 3, window=window))
            text = f"No item of table t has a window of {length} steps; the longest has {longest}."
            line = re.compile(f"^t +ahead .*{re.escape(text)}", re.MULTILINE)
            until(lambda line=line: line.search(why()))
            shards[shard].insert_sequence([np.arange(length)], {"t": 1.0})
            assert call.result().data[0].shape == (3, length)

    @on_both_hosts
    def test_a_pause_is_not_a_missing_window(self, make, until):
        """A shard whose samples were paused was left out until its table changed."""
        client, shards = make()
        for number, shard in enumerate(shards):
            shard.insert_sequence([np.full(9, number)], {"t": 1.0})
        shards[1].pause_table("t", inserts=False)
        for _ in range(10):
            assert (client.sample_batch("t", 5, window=WINDOW).data[0] == 0).all()
        shards[1].resume_table("t")
        until(lambda: (client.sample_batch("t", 5, window=WINDOW).data[0] == 1).any())
