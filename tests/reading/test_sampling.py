# SPDX-License-Identifier: Apache-2.0
"""Promises of sampling on both paths: the time of fetches, the order, the waits.

Arguments are tested in `api/test_client.py`, the shape of results in `test_round_trip.py`.
"""

import gc

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    SignatureMismatchError,
    UnavailableError,
)
from reverb.specs import TensorSpec

Fifo = reverb.selectors.Fifo


def queue(max_size=1000, name="queue"):
    return reverb.Table.queue(name, max_size)


def insert(client, *values, table="queue", priority=1.0):
    client.insert_batch([np.asarray(values)], {table: priority})


def values(samples):
    return [int(steps[0].data[0]) for steps in samples]


def sample(client, call, table, timeout_ms=None):
    if call == "sample":
        return next(client.sample(table, timeout_ms=timeout_ms))
    return client.sample_batch(table, 2, timeout_ms=timeout_ms)


def next_while_running(call, samples):
    while call.running:
        next(samples)


def num_sampled(table):
    return table.info.rate_limiter_info.sample_stats.completed


class TestGenerator:
    def test_nothing_is_fetched_before_the_first_next(self, serve):
        table = queue()
        client = serve(table)
        insert(client, 1)
        samples = client.sample("queue")
        assert num_sampled(table) == 0
        assert values(samples) == [1]

    @pytest.mark.parametrize("num_samples", [1, 2, 3, 5, 300, 1000])
    def test_it_yields_and_counts_exactly_as_many_as_asked_for(self, serve, num_samples):
        table = testing.table()
        client = serve(table)
        insert(client, 1, table="table")
        assert len(list(client.sample("table", num_samples))) == num_samples
        assert num_sampled(table) == num_samples
        assert table.info.num_unique_samples == 1

    def test_one_sample_of_a_queue_takes_one_item(self, serve):
        table = queue()
        client = serve(table)
        insert(client, 1, 2, 3)
        assert values(client.sample("queue", 1)) == [1]
        assert values(client.sample("queue", 2)) == [2, 3]

    def test_no_more_than_one_sample_is_fetched_ahead(self, serve):
        table = queue()
        client = serve(table)
        insert(client, *range(5))
        samples = client.sample("queue", 5)
        next(samples)
        assert num_sampled(table) in (1, 2)
        # The items of a second reader follow at once.
        assert values(client.sample("queue", 1)) in ([1], [2])
        assert num_sampled(table) in (2, 3)

    @pytest.mark.parametrize("taken", [1, 2, 3, 10])
    def test_an_abandoned_generator_loses_no_more_than_was_taken(self, serve, taken):
        table = queue()
        client = serve(table)
        insert(client, *range(100))
        samples = client.sample("queue", 100)
        assert [int(next(samples)[0].data[0]) for _ in range(taken)] == list(range(taken))
        samples.close()
        gc.collect()
        insert(client, 100)
        rest = values(client.sample("queue", table.info.current_size))
        # In order, and complete but for what was fetched ahead: at most as many as were taken.
        assert rest == list(range(rest[0], 101))
        assert taken <= rest[0] <= 2 * taken

    def test_an_item_is_handed_out_as_soon_as_it_is_there(self, serve):
        client = serve(queue())
        samples = client.sample("queue", 6)
        for i in range(6):
            insert(client, i)
            assert int(next(samples)[0].data[0]) == i
        assert list(samples) == []

    def test_two_generators_take_turns(self, serve):
        client = serve(queue())
        insert(client, *range(20))
        first, second = client.sample("queue", 10), client.sample("queue", 10)
        taken = [int(next(samples)[0].data[0]) for _ in range(10) for samples in (first, second)]
        assert sorted(taken) == list(range(20))
        assert taken[::2] == sorted(taken[::2])

    def test_a_generator_outlives_its_client(self, serve):
        client = serve(queue())
        insert(client, *range(10))
        samples = client.sample("queue", 10)
        next(samples)
        del client
        gc.collect()
        assert values(samples) == list(range(1, 10))

    def test_two_threads_cannot_share_a_generator(self, serve, background):
        client = serve(queue())
        samples = client.sample("queue")
        call = background(next, samples)
        with pytest.raises(ValueError, match="already executing"):
            next_while_running(call, samples)
        insert(client, 1)
        assert call.result()[0].data == [1]


class TestTimeout:
    @pytest.mark.parametrize("timeout_ms", [0, 50])
    @pytest.mark.parametrize("call", ["sample", "sample_batch"])
    def test_the_error_holds_the_limiters_numbers(self, serve, call, timeout_ms):
        limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 3, (1.0, 11.0))
        client = serve(testing.table("slow", rate_limiter=limiter))
        insert(client, 1, 2, table="slow")
        with pytest.raises(DeadlineExceededError) as caught:
            sample(client, call, "slow", timeout_ms)
        for part in (
            "Table slow: 1 more insert allows the next sample. Its rate limiter: ",
            "2 item(s)",
            "min_size_to_sample 3",
            "2 insert(s), 0 sample(s), 0 delete(s)",
            "samples_per_insert 2",
            "min_diff 1, max_diff 11",
        ):
            assert part in str(caught.value)

    @pytest.mark.parametrize("timeout_ms", [0, 50])
    def test_what_is_there_is_yielded_before_the_error(self, serve, timeout_ms):
        client = serve(queue())
        insert(client, *range(5))
        samples = client.sample("queue", 10, timeout_ms=timeout_ms)
        assert [int(next(samples)[0].data[0]) for _ in range(5)] == list(range(5))
        with pytest.raises(DeadlineExceededError):
            next(samples)

    @pytest.mark.parametrize("timeout_ms", [0, 50])
    def test_a_batch_that_is_cut_short_is_what_was_there(self, serve, timeout_ms):
        client = serve(queue())
        insert(client, 1, 2)
        info, (column,) = client.sample_batch("queue", 5, timeout_ms=timeout_ms)
        assert column.ravel().tolist() == [1, 2]
        assert len(info.key) == 2

    def test_the_client_goes_on_after_a_timeout(self, serve):
        client = serve(queue())
        for i in range(3):
            with pytest.raises(DeadlineExceededError):
                next(client.sample("queue", timeout_ms=0))
            insert(client, i)
            assert values(client.sample("queue", timeout_ms=0)) == [i]

    @pytest.mark.parametrize("timeout_ms", [None, -1, 10_000])
    def test_a_long_timeout_waits(self, serve, background, timeout_ms):
        client = serve(queue())
        call = background(lambda: values(client.sample("queue", timeout_ms=timeout_ms)))
        insert(client, 7)
        assert call.result() == [7]


class TestWaiting:
    def test_an_insert_of_another_client_wakes_it(self, start, connect, background):
        server = start(queue())
        call = background(lambda: values(connect(server).sample("queue")))
        insert(connect(server), 3)
        assert call.result() == [3]

    def test_a_batch_waits_until_it_is_full(self, serve, background):
        table = queue()
        client = serve(table)
        call = background(client.sample_batch, "queue", 3)
        for i in range(3):
            assert call.running
            insert(client, i)
        assert call.result().data[0].ravel().tolist() == [0, 1, 2]

    def test_a_reset_lets_it_wait_on(self, serve, background, until):
        table = testing.table("table", rate_limiter=reverb.rate_limiters.MinSize(2))
        client = serve(table)
        call = background(lambda: values(client.sample("table")))
        insert(client, 1, table="table")
        client.reset("table")
        insert(client, 2, table="table")
        assert call.running
        insert(client, 3, table="table")
        assert call.result() == [2]

    @pytest.mark.parametrize("call", ["sample", "sample_batch"])
    def test_a_server_that_stops_ends_it(self, start, connect, background, call):
        server = start(queue())
        client = connect(server, connect_timeout_s=0.3)
        waiting = background(sample, client, call, "queue")
        server.stop()
        with pytest.raises((CancelledError, UnavailableError), match=str(server.port)):
            waiting.result()

    def test_it_goes_on_when_a_server_comes_back_on_the_port(self, start, connect, background):
        server = start(queue())
        client = connect(server)
        call = background(lambda: values(client.sample("queue")))
        server.stop()
        server = start(queue(), port=server.port)
        insert(connect(server), 5)
        assert call.result() == [5]


class TestColumns:
    def test_a_single_value_has_no_timesteps(self, serve):
        client = serve(testing.table())
        with client.trajectory_writer(1) as writer:
            writer.append({"a": 1, "b": np.zeros(3)})
            history = writer.history
            writer.create_item("table", 1.0, [history["a"][-1], history["b"][-1:]])
        with pytest.raises(
            InvalidArgumentError, match=r"Column 0 is a single value.*emit_timesteps=False"
        ):
            next(client.sample("table"))

    def test_lengths_that_differ_are_told(self, serve):
        client = serve(testing.table())
        with client.trajectory_writer(3) as writer:
            for i in range(3):
                writer.append([i, i])
            first, second = writer.history
            writer.create_item("table", 1.0, [first[-3:], second[-2:]])
        with pytest.raises(
            ValueError, match=r"column 0 has 3 steps and column 1 has 2.*emit_timesteps=False"
        ):
            next(client.sample("table"))

    def test_a_squeezed_array_is_taken_apart_along_its_first_axis(self, serve):
        client = serve(testing.table())
        with client.trajectory_writer(1) as writer:
            writer.append(np.arange(6).reshape(3, 2))
            writer.create_item("table", 1.0, writer.history[-1])
        (steps,) = client.sample("table")
        assert [step.data[0].tolist() for step in steps] == [[0, 1], [2, 3], [4, 5]]

    def test_arrays_are_the_callers_own(self, serve):
        client = serve(testing.table())
        client.insert([np.zeros(100_000)], {"table": 1.0})
        for _ in range(2):
            (whole,) = client.sample("table", emit_timesteps=False)
            batch = client.sample_batch("table", 1)
            assert not whole.data[0].any()
            assert not batch.data[0].any()
            whole.data[0][:] = 1
            batch.data[0][:] = 1


class TestSignature:
    def test_server_info_learns_the_signatures_of_a_restarted_server(self, start, connect):
        server = start(testing.table(signature={"a": TensorSpec([None], np.int64)}))
        client = connect(server)
        client.insert({"a": 1}, {"table": 1.0})
        next(client.sample("table", unpack_as_table_signature=True))
        server.stop()
        new = {"x": TensorSpec([None], np.float64), "y": TensorSpec([None], np.float64)}
        start(testing.table(signature=new), port=server.port)
        client.server_info()
        client.insert({"x": 1.0, "y": 2.0}, {"table": 1.0})
        (steps,) = client.sample("table", unpack_as_table_signature=True)
        assert steps[0].data == {"x": 1.0, "y": 2.0}
        batch = client.sample_batch("table", 1, unpack_as_table_signature=True)
        assert set(batch.data) == {"x", "y"}
        with pytest.raises(SignatureMismatchError):
            client.insert({"a": 1}, {"table": 1.0})
