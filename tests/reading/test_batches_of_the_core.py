# SPDX-License-Identifier: Apache-2.0
"""`reverb.batches` of one table: the core has them ahead, without a thread of Python."""

import gc
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import testing
from reverb.errors import DeadlineExceededError, InvalidArgumentError, TableNotFoundError


def num_sampled(client, table="t"):
    return client.server_info()[table].rate_limiter_info.sample_stats.completed


def num_waiting(client, table):
    return client.status().tables[table].sampling.waiting


@settings(max_examples=40)
@given(
    pauses=st.lists(st.sampled_from([0, 0, 0, 0.0002, 0.0015]), max_size=60),
    size=st.integers(1, 4),
    batch_size=st.integers(1, 5),
    written=st.integers(1, 7),
)
def test_a_queue_comes_in_order_and_no_faster_than_asked(serve, pauses, size, batch_size, written):
    """Whatever the pauses of its reader and the parts in which it is written."""
    client = serve(reverb.Table.queue("t", 10_000))
    total = batch_size * len(pauses) + batch_size * size
    with reverb.batches(client, "t", batch_size, prefetch=size, timeout_ms=30_000) as iterator:
        inserted = 0
        for number, pause in enumerate(pauses):
            while inserted < min(total, batch_size * (number + 1)):
                client.insert_batch([np.arange(inserted, inserted + written)], {"t": 1.0})
                inserted += written
            first = number * batch_size
            batch = next(iterator)
            assert batch.data[0].ravel().tolist() == list(range(first, first + batch_size))
            time.sleep(pause)
            stats = iterator.stats()
            assert (stats.num_returned, stats.queued <= size) == (number + 1, True)
            assert num_sampled(client) <= (number + 1 + size) * batch_size


def test_an_error_is_raised_by_each_next(serve):
    client = serve(testing.table("t", max_times_sampled=1))
    client.insert_batch([np.zeros((4, 2))], {"t": 1.0})
    client.insert_batch([np.zeros((4, 3))], {"t": 1.0})
    with reverb.batches(client, "t", 8) as iterator:
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=r"table t at .* the same shapes"):
                next(iterator)


def test_what_was_sampled_comes_with_the_error(start, connect):
    # The rest of a batch is waited for when the server goes away.
    server = start(reverb.Table.queue("q", 10))
    client = connect(server, connect_timeout_s=0.3)
    with reverb.batches(client, "q", 4) as iterator:
        client.insert_batch([np.arange(3)], {"q": 1.0})
        deadline = time.monotonic() + 30
        while client.server_info()["q"].current_size:
            assert time.monotonic() < deadline
        server.stop()
        with pytest.raises(reverb.errors.ReverbError, match="a sample of table q: No ") as raised:
            next(iterator)
    assert [sample.data[0].item() for sample in raised.value.samples] == [0, 1, 2]


def test_closing_it_in_another_thread_ends_next(serve, background, until):
    client = serve(testing.table("t"))
    iterator = reverb.batches(client, "t", 4)
    waiting = background(lambda: list(iterator))
    until(lambda: num_waiting(client, "t") == 1)
    iterator.close()
    assert waiting.result() == []
    until(lambda: num_waiting(client, "t") == 0)


def test_a_closed_one_takes_nothing_more(serve, until):
    client = serve(reverb.Table.queue("q", 100))
    for number in range(12):
        # One batch is ready, and another one is waited for.
        client.insert_batch([np.arange(1)], {"q": 1.0})
        iterator = reverb.batches(client, "q", 1, prefetch=2)
        until(lambda iterator=iterator: iterator.stats().queued == 1)
        iterator.close()
        client.insert_batch([np.array([number])], {"q": 1.0})
        assert client.sample_batch("q", 1, timeout_ms=30_000).data[0].item() == number


def test_an_error_makes_it_ready(serve, until):
    client = serve(testing.table("t"))
    with reverb.batches(client, "other", 4) as iterator:
        until(iterator.ready)
        with pytest.raises(TableNotFoundError):
            next(iterator)


def test_an_exception_of_a_signal_handler_is_no_end(serve):
    client = serve(testing.table("t"))

    def stop(*_):
        raise ValueError("enough")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with reverb.batches(client, "t", 1) as iterator:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(ValueError, match="enough"):
                next(iterator)
            client.insert_batch([np.arange(1)], {"t": 1.0})
            assert len(next(iterator).info.key) == 1
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("timeout_ms", [0, 150])
def test_waits_in_vain_count_and_end(serve, timeout_ms):
    client = serve(testing.table("t"))
    with reverb.batches(client, "t", 1, timeout_ms=timeout_ms) as iterator:
        with pytest.raises(DeadlineExceededError, match="waiting for a sample of table t at "):
            next(iterator)
        assert iterator.stats().wait_s >= timeout_ms / 1_000


def test_who_is_dropped_waits_no_more(serve, until):
    client = serve(testing.table("t"))
    iterator = reverb.batches(client, "t", 4)
    until(lambda: num_waiting(client, "t") == 1)
    del iterator
    gc.collect()
    until(lambda: num_waiting(client, "t") == 0)


@pytest.mark.parametrize("ragged", ["error", "pad", "packed"])
def test_a_batch_is_what_sample_batch_returns(serve, ragged):
    signature = {"x": np.zeros([1], np.float32), "y": {"z": np.zeros([1], np.int64)}}
    table = testing.table("t", sampler=reverb.selectors.Fifo(), signature=signature)
    client = serve(table)
    rows = {"x": np.arange(8, dtype=np.float32), "y": {"z": np.arange(8)}}
    client.insert_batch(rows, {"t": 1.0})
    options = {"ragged": ragged, "distinct": True}
    if ragged == "pad":
        options |= {"columns": ["y"], "pad": 7, "pad_to_multiple_of": 4}
    with reverb.batches(client, "t", 8, **options) as iterator:
        batch = next(iterator)
    expected = client.sample_batch("t", 8, unpack_as_table_signature=True, **options)

    def same(one, two):
        if isinstance(one, dict):
            assert one.keys() == two.keys()
            for key, value in one.items():
                same(value, two[key])
        elif isinstance(one, reverb.Ragged):
            same(one.values, two.values)
            same(one.offsets, two.offsets)
        elif isinstance(one, tuple):
            assert one == two == ()
        else:
            np.testing.assert_array_equal(one, two)
            assert one.dtype == two.dtype

    same(batch.data, expected.data)
    assert type(batch.info) is type(expected.info) is reverb.BatchInfo
    for name in expected.info._fields:
        if name != "times_sampled":
            same(getattr(batch.info, name), getattr(expected.info, name))
    assert (batch.lengths != ()) == (ragged == "pad")


@pytest.mark.parametrize("pause_s", [0, 0.0005])
def test_a_queue_comes_whole_and_in_order(serve, background, pause_s):
    client = serve(reverb.Table.queue("q", 50))

    def write():
        with client.trajectory_writer(1) as writer:
            for i in range(1000):
                writer.append([np.int64(i)])
                writer.create_item("q", 1.0, [writer.history[0][-1]])

    writing = background(write)
    with reverb.batches(client, "q", 4, prefetch=3, timeout_ms=30_000) as iterator:
        got = []
        for _ in range(250):
            got += next(iterator).data[0].tolist()
            time.sleep(pause_s)
    assert got == list(range(1000))
    writing.result()
