# SPDX-License-Identifier: Apache-2.0
"""`reverb.batches` in a program that asks for one batch after another: `next` fetches, too."""

import collections
import contextlib
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import testing
from reverb.errors import DeadlineExceededError, TableNotFoundError
from reverb.prefetching import PrefetchIterator

LONG_S = 0.005


class Numbers:
    """A source of numbers, from the thread and at once, that notes who asks it."""

    def __init__(self, refuses=lambda number: False):
        self.threads = []
        self._number = 0
        self._refuses = refuses
        self._is_used = threading.Lock()

    def source(self, count, pipe):
        for _ in range(count):
            yield self._take()

    def at_once(self):
        return None if self._refuses(self._number) else self._take()

    def _take(self):
        assert self._is_used.acquire(blocking=False), "one at a time"
        self.threads.append(threading.current_thread())
        number, self._number = self._number, self._number + 1
        time.sleep(0)
        self._is_used.release()
        return (number,)


def test_a_program_in_a_hurry_fetches_itself():
    numbers = Numbers()
    with PrefetchIterator(numbers.source, 2, at_once=numbers.at_once) as iterator:
        assert [next(iterator)[0] for _ in range(2000)] == list(range(2000))
        own = sum(thread is threading.current_thread() for thread in numbers.threads)
        assert own > 200
        assert iterator.stats().num_returned == 2000


def test_a_program_that_computes_has_batches_ahead(until):
    numbers = Numbers()
    with PrefetchIterator(numbers.source, 3, at_once=numbers.at_once) as iterator:
        for _ in range(100):
            next(iterator)
        # It is idle now: nobody asks, and nobody has to.
        until(lambda: iterator.stats().queued == 3)
        for _ in range(20):
            time.sleep(LONG_S)
            until(lambda: iterator.stats().queued == 3)
            next(iterator)
            assert numbers.threads[-1] is not threading.current_thread()


@settings(max_examples=30, deadline=None)
@given(
    pauses=st.lists(st.sampled_from([0, 0, 0, 0.0002, 0.0015]), max_size=60),
    size=st.integers(1, 4),
    refused=st.integers(1, 4),
)
def test_the_order_is_kept_whatever_the_pauses(pauses, size, refused):
    numbers = Numbers(lambda number: number % refused == 0)
    with PrefetchIterator(numbers.source, size, at_once=numbers.at_once) as iterator:
        for expected, pause in enumerate(pauses):
            assert next(iterator) == (expected,)
            time.sleep(pause)
            stats = iterator.stats()
            assert stats.num_returned == expected + 1
            assert stats.queued <= size
            assert len(numbers.threads) <= expected + 1 + size


def test_an_error_is_raised_again_and_ends_the_thread(until):
    calls = []

    def at_once():
        calls.append(1)
        raise ValueError("lost")

    numbers = Numbers()
    iterator = PrefetchIterator(numbers.source, 1, at_once=at_once)
    with pytest.raises(ValueError, match="lost"):
        collections.deque(iterator)
    with pytest.raises(ValueError, match="lost"):
        next(iterator)
    assert len(calls) == 1
    until(lambda: not iterator._thread.is_alive())
    iterator.close()


def test_ctrl_c_is_no_end():
    numbers = Numbers()
    at_once = numbers.at_once
    interrupts = [KeyboardInterrupt]

    def interrupted():
        if interrupts:
            raise interrupts.pop()
        return at_once()

    with PrefetchIterator(numbers.source, 1, at_once=interrupted) as iterator:
        got = []
        while interrupts:
            with contextlib.suppress(KeyboardInterrupt):
                got.append(next(iterator)[0])
        got += [next(iterator)[0] for _ in range(100)]
        assert got == list(range(len(got)))


@pytest.mark.parametrize("pause_s", [0, 0.0005])
def test_a_queue_comes_whole_and_in_order(serve, background, pause_s):
    client = serve(reverb.Table.queue("q", 50))

    def write():
        with client.trajectory_writer(1) as writer:
            for i in range(1000):
                writer.append([np.int64(i)])
                writer.create_item("q", 1.0, [writer.history[0][-1]])

    writing = background(write)
    with reverb.batches(client, "q", 4, prefetch=3, timeout_s=30) as iterator:
        got = []
        for _ in range(250):
            got += next(iterator).data[0].tolist()
            time.sleep(pause_s)
    assert got == list(range(1000))
    writing.result()


def test_it_waits_where_the_table_is_empty_and_tells_what_for(serve):
    client = serve(reverb.Table.queue("q", 50))
    client.insert_batch([np.arange(30)], {"q": 1.0})
    with reverb.batches(client, "q", 4, timeout_s=0.5) as iterator:
        got = [value for _ in range(7) for value in next(iterator).data[0].ravel().tolist()]
        assert got == list(range(28))
        with pytest.raises(DeadlineExceededError, match="a sample of table q at "):
            next(iterator)
        client.insert_batch([np.arange(30, 32)], {"q": 1.0})
        assert next(iterator).data[0].ravel().tolist() == [28, 29, 30, 31]


def test_the_table_counts_what_was_returned_and_what_is_ahead(serve, until):
    client = serve(testing.table("t"))
    client.insert_batch([np.arange(64)], {"t": 1.0})
    with reverb.batches(client, "t", 16, prefetch=2) as iterator:
        for _ in range(500):
            next(iterator)
        until(lambda: iterator.stats().queued == 2)
        stats = client.server_info()["t"].rate_limiter_info.sample_stats
        assert stats.completed == 502 * 16


def test_a_server_that_goes_away_is_an_error_that_names_it(start, connect):
    server = start(testing.table("t"))
    client = connect(server)
    client.insert_batch([np.arange(64)], {"t": 1.0})
    with reverb.batches(client, "t", 16) as iterator:
        for _ in range(50):
            next(iterator)
        server.stop()
        with pytest.raises(reverb.errors.ReverbError, match="a sample of table t at "):
            collections.deque(iterator)


def test_a_table_that_is_not_there(serve):
    client = serve(testing.table("t"))
    with (
        reverb.batches(client, "other", 16) as iterator,
        pytest.raises(TableNotFoundError, match="other"),
    ):
        next(iterator)


def test_a_transform_stays_in_its_thread(serve):
    client = serve(testing.table("t"))
    client.insert_batch([np.arange(64)], {"t": 1.0})
    threads = []

    def note(batch):
        threads.append(threading.current_thread())
        return batch

    with reverb.batches(client, "t", 16, transform=note) as iterator:
        for _ in range(200):
            next(iterator)
    assert {thread.name for thread in threads} == {"reverb-prefetch"}
