# SPDX-License-Identifier: Apache-2.0
"""A batch that fails loses no item: it stays in the table, or comes with the exception."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import item_selectors, testing
from reverb.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    SignatureMismatchError,
)
from support.hosts import HOSTS


def queue(max_size=100, **options):
    return reverb.Table.queue("queue", max_size, **options)


def write(client, lengths, *, table="queue", first=0):
    """One item for each length: so many times its ordinal."""
    for value, length in enumerate(lengths, first):
        client.insert([np.full(length, value)], {table: float(value)})


def values(samples):
    return [int(np.ravel(sample.data[0])[0]) for sample in samples]


class TestQueues:
    def test_items_that_cannot_be_stacked_stay(self, serve):
        client = serve(queue())
        write(client, [1, 2, 3, 4, 5])
        with pytest.raises(InvalidArgumentError, match="column 0 is int64") as caught:
            client.sample_batch("queue", 5)
        assert caught.value.samples == []
        info = client.server_info()["queue"]
        assert info.current_size == 5
        assert info.rate_limiter_info.sample_stats.completed == 0
        assert info.num_unique_samples == 0
        samples = [steps[0] for steps in client.sample("queue", 5)]
        assert values(samples) == [0, 1, 2, 3, 4]
        assert [sample.info.times_sampled for sample in samples] == [1] * 5

    def test_more_than_a_message_is_checked_as_a_whole(self, serve):
        client = serve(queue(1000))
        write(client, [30_000] * 20 + [1])  # 4.8 MB before the one that does not fit.
        with pytest.raises(InvalidArgumentError):
            client.sample_batch("queue", 21)
        assert client.size("queue") == 21
        assert len(client.sample_batch("queue", 20).info.key) == 20

    def test_many_small_items_are_checked_as_a_whole(self, serve):
        client = serve(queue(10_000))
        rows = np.zeros((5000, 3))
        client.insert_batch([rows], {"queue": np.ones(5000)})
        write(client, [7])
        with pytest.raises(InvalidArgumentError):
            client.sample_batch("queue", 5001)
        assert client.size("queue") == 5001

    def test_what_an_earlier_go_sampled_comes_with_the_exception(self, serve, background, until):
        server_table = queue()
        client = serve(server_table)
        write(client, [2, 2])
        call = background(client.sample_batch, "queue", 4)
        until(lambda: server_table.info.current_size == 0)
        write(client, [3, 4], first=2)
        with pytest.raises(InvalidArgumentError) as caught:
            call.result()
        left = client.size("queue")
        kept = values(caught.value.samples)
        # The two that came later may have been taken one by one, as they came, or together.
        assert kept == list(range(4 - left))
        assert kept[:2] == [0, 1]
        assert all(isinstance(sample, reverb.ReplaySample) for sample in caught.value.samples)

    def test_the_exception_has_the_samples_before_the_stop(self, start, connect, background, until):
        table = queue()
        server = start(table)
        client = connect(server, connect_timeout_s=0.2)
        write(client, [2, 2])
        call = background(client.sample_batch, "queue", 4)
        until(lambda: table.info.current_size == 0)
        server.stop()
        with pytest.raises((CancelledError, reverb.errors.UnavailableError)) as caught:
            call.result()
        assert values(caught.value.samples) == [0, 1]

    def test_a_signature_that_does_not_fit_keeps_the_items(self, serve):
        table = queue(signature={"x": reverb.specs.TensorSpec([None], np.int64)})
        client = serve(table)
        with client.trajectory_writer(1, validate_items=False) as writer:
            writer.append([1, 2])
            first, second = writer.history
            writer.create_item("queue", 1.0, [first[:], second[:]])
        with pytest.raises(SignatureMismatchError) as caught:
            client.sample_batch("queue", 1, unpack_as_table_signature=True)
        (sample,) = caught.value.samples
        assert [column.tolist() for column in sample.data] == [[1], [2]]
        assert client.size("queue") == 0

    def test_the_exception_has_an_item_that_cannot_be_split(self, serve):
        client = serve(queue())
        with client.trajectory_writer(2) as writer:
            for value in (1, 2):
                writer.append([value, value])
            first, second = writer.history
            writer.create_item("queue", 1.0, [first[:], second[-1:]])
        with pytest.raises(InvalidArgumentError, match="timesteps") as caught:
            next(client.sample("queue", 1))
        (sample,) = caught.value.samples
        assert [column.tolist() for column in sample.data] == [[1, 2], [2]]


def test_other_errors_have_no_samples(serve):
    client = serve(queue())
    with pytest.raises(reverb.errors.TableNotFoundError) as caught:
        client.sample_batch("nowhere", 1)
    assert caught.value.samples == []
    assert reverb.errors.ReverbError().samples == ()


@st.composite
def programs(draw):
    """Lengths of items, and what is asked for in turn."""
    lengths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))
    batches = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    return lengths, batches, draw(st.integers(1, 3)), draw(st.integers(0, 3))


SELECTORS = [
    item_selectors.Fifo,
    item_selectors.Lifo,
    item_selectors.MaxHeap,
    item_selectors.Uniform,
]


@settings(max_examples=60)
@given(program=programs())
def test_every_item_is_in_the_table_or_was_given(program, path):
    """Whatever fails: what a table counts as sampled, somebody got."""
    lengths, batches, max_times_sampled, selector = program
    table = testing.table(
        name="queue", sampler=SELECTORS[selector](), max_times_sampled=max_times_sampled
    )
    with reverb.Server([table]) as server:
        client = reverb.Client(f"{HOSTS[path]}:{server.port}")
        write(client, lengths)
        given_away = Counter()
        for batch_size in batches:
            try:
                batch = client.sample_batch("queue", batch_size, timeout_ms=0)
                given_away.update(batch.data[0][:, 0, 0].tolist())
                assert len({lengths[value] for value in batch.data[0][:, 0, 0]}) == 1
            except (InvalidArgumentError, DeadlineExceededError) as error:
                given_away.update(values(error.samples))
        info = client.server_info()["queue"]
        assert info.rate_limiter_info.sample_stats.completed == given_away.total()
        there = {
            int(np.ravel(item.data[0])[0]): item.info.times_sampled for item in client.scan("queue")
        }
        for value in range(len(lengths)):
            if value in there:
                assert there[value] == given_away[value]
            else:
                assert given_away[value] == max_times_sampled
