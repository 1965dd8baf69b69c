# SPDX-License-Identifier: Apache-2.0
"""Promises of writers on both paths: confirmation, limits, order, and late errors.

Arguments are tested with each writer; what becomes of data in `reading/test_round_trip.py`.
"""

import numpy as np
import pytest

import reverb
from reverb import structured, testing
from reverb.errors import DeadlineExceededError, InvalidArgumentError, TableNotFoundError


def write(writer, *values, table="queue", priority=1.0):
    """One item for each value."""
    for value in values:
        writer.append([value])
        writer.create_item(table, priority, [writer.history[0][-1:]])


def values(client, table="queue", count=None):
    count = client.server_info()[table].current_size if count is None else count
    return [int(steps[0].data[0]) for steps in client.sample(table, count)] if count else []


def last_step_config(table="queue", **options):
    pattern = structured.pattern_from_transform([None], lambda step: [step[0][-1:]])
    return structured.create_config(pattern, table, **options)


class TestConfirmation:
    @pytest.mark.parametrize("unconfirmed", [1, 2, 4])
    def test_flush_may_leave_some_unconfirmed(self, serve, unconfirmed):
        table = reverb.Table.queue("queue", 2)
        client = serve(table)
        writer = client.trajectory_writer(1)
        write(writer, *range(2 + unconfirmed))
        writer.flush(unconfirmed)
        assert table.info.current_size == 2
        with pytest.raises(DeadlineExceededError):
            writer.flush(unconfirmed - 1, timeout_ms=20)
        writer.close()

    @pytest.mark.parametrize("timeout_ms", [None, 0, -1])
    def test_flush_without_a_timeout_waits(self, serve, background, timeout_ms):
        client = serve(reverb.Table.queue("queue", 1))
        writer = client.trajectory_writer(1)
        write(writer, 0, 1)
        call = background(writer.flush, timeout_ms=timeout_ms)
        assert values(client, count=2) == [0, 1]
        call.result()

    def test_another_thread_may_close_a_writer_that_flushes(self, serve, background):
        client = serve(reverb.Table.queue("queue", 1))
        writer = client.trajectory_writer(1)
        write(writer, 0, 1)
        call = background(writer.flush)
        writer.close()
        with pytest.raises(RuntimeError, match="The writer is closed"):
            call.result()

    def test_an_older_writers_flush_sends_and_the_next_one_waits(self, serve, background):
        client = serve(reverb.Table.queue("queue", 1))
        with client.writer(1, chunk_length=1) as writer:
            for i in range(3):
                writer.append([i])
                writer.create_item("queue", 1, 1.0)
            call = background(writer.flush)
            assert values(client, count=3) == [0, 1, 2]
            call.result()

    def test_an_older_writer_sends_items_after_their_whole_chunk(self, serve, until):
        table = reverb.Table.queue("queue", 10)
        client = serve(table)
        with client.writer(3, chunk_length=3) as writer:
            writer.append([0])
            writer.create_item("queue", 1, 1.0)
            writer.append([1])
            assert table.info.current_size == 0
            writer.append([2])
            until(lambda: table.info.current_size == 1)

    def test_an_older_writer_waits_for_room_among_unconfirmed_items(self, serve, background, until):
        table = reverb.Table.queue("queue", 2)
        client = serve(table)
        created = []

        def run():
            with client.writer(1, max_in_flight_items=3) as writer:
                for i in range(6):
                    writer.append([i])
                    writer.create_item("queue", 1, 1.0)
                    created.append(i)

        call = background(run)
        # Two are in the table, three on their way; the sixth waits.
        until(lambda: len(created) == 5)
        assert call.running
        assert values(client, count=6) == list(range(6))
        call.result()

    def test_insert_waits_for_the_limiter(self, serve, background):
        client = serve(reverb.Table.queue("queue", 1))
        client.insert([0], {"queue": 1.0})
        call = background(client.insert, [1], {"queue": 1.0})
        assert values(client, count=2) == [0, 1]
        call.result()


class TestOrder:
    def test_items_for_two_tables_arrive_in_both(self, serve):
        client = serve(reverb.Table.queue("a", 500), reverb.Table.queue("b", 500))
        with client.trajectory_writer(1) as writer:
            for i in range(300):
                writer.append([i])
                for table in ("a", "b"):
                    writer.create_item(table, 1.0, [writer.history[0][-1:]])
        assert values(client, "a") == values(client, "b") == list(range(300))

    def test_items_keep_their_order_over_a_restart(self, start, connect):
        server = start(reverb.Table.queue("queue", 1))
        client = connect(server)
        writer = client.trajectory_writer(1)
        write(writer, *range(50))
        writer.flush(49)
        server.stop()
        start(reverb.Table.queue("queue", 100), port=server.port)
        writer.flush()
        # Item 0 went with the first server.
        assert values(client) == list(range(1, 50))

    @pytest.mark.parametrize("flush_every", [1, 50, 200])
    @pytest.mark.parametrize("index", [slice(-20, None, 2), slice(-20, None, 3)], ids=str)
    def test_strided_windows_hold_what_was_asked_for(self, serve, index, flush_every):
        client = serve(testing.table("table", max_size=10_000))
        with client.trajectory_writer(20) as writer:
            for step in range(1000):
                writer.append([step])
                if step >= 19:
                    writer.create_item("table", 1.0, [writer.history[0][index]])
                if step % flush_every == 0:
                    writer.flush()
        for first in range(981):
            (sample,) = client.sample("table", emit_timesteps=False)
            assert sample.data[0].tolist() == list(range(first, first + 20))[index]
            client.mutate_priorities("table", deletes=[sample.info.key])

    def test_strided_patterns_hold_what_was_asked_for(self, serve):
        client = serve(reverb.Table.queue("queue", 10_000))
        pattern = structured.pattern_from_transform([None], lambda step: [step[0][-20::2]])
        writer = client.structured_writer([structured.create_config(pattern, "queue")])
        for step in range(1000):
            writer.append([step])
            if step % 50 == 0:
                writer.flush()
        writer.flush()
        for first, sample in enumerate(client.sample("queue", 981, emit_timesteps=False)):
            assert sample.data[0].tolist() == list(range(first, first + 20, 2))


class TestLateErrors:
    def test_a_refused_priority_comes_back_and_the_table_goes_on(self, serve):
        table = testing.table("table", sampler=reverb.selectors.Prioritized(1.0))
        client = serve(table)
        writer = client.trajectory_writer(1)
        write(writer, 0, table="table", priority=-1.0)
        with pytest.raises(InvalidArgumentError, match="negative"):
            writer.flush()
        assert table.info.current_size == 0
        with client.trajectory_writer(1) as other:
            write(other, 1, table="table")
        assert values(client, "table", 1) == [1]

    @pytest.mark.parametrize("priority", [-1.0, float("inf"), 1e300])
    def test_probabilities_stay_numbers(self, serve, priority):
        client = serve(testing.table("table", sampler=reverb.selectors.Prioritized(2.0)))
        client.insert_batch([np.arange(2)], {"table": 1.0})
        key = next(client.sample("table"))[0].info.key
        with pytest.raises(ValueError, match="riority"):
            client.mutate_priorities("table", {key: priority})
        assert client.sample_batch("table", 20).info.probability.tolist() == [0.5] * 20

    def test_it_is_raised_by_every_later_call(self, serve, until):
        client = serve(testing.table())
        writer = client.trajectory_writer(1, validate_items=False)
        write(writer, 0, table="nope")
        with pytest.raises(TableNotFoundError):
            writer.flush()
        column = writer.history[0][-1:]
        for call in (
            lambda: writer.append([1]),
            lambda: writer.create_item("table", 1.0, [column]),
            writer.flush,
            writer.end_episode,
        ):
            with pytest.raises(RuntimeError, match="nope was not found"):
                call()
        writer.close()

    def test_a_structured_writer_raises_it_later(self, serve):
        client = serve(testing.table())
        writer = client.structured_writer([last_step_config("nope")])
        writer.append([0])
        with pytest.raises(RuntimeError, match="nope was not found"):
            writer.flush()
        with pytest.raises(RuntimeError, match="nope was not found"):
            writer.append([1])

    def test_a_with_block_shows_it(self, serve):
        client = serve(testing.table())
        with (
            pytest.raises(TableNotFoundError, match="nope was not found"),
            client.trajectory_writer(1, validate_items=False) as writer,
        ):
            write(writer, 0, table="nope")

    def test_one_bad_row_keeps_a_batch_out(self, serve):
        client = serve(testing.table())
        writer = client.batched_trajectory_writer(3, 2)
        writer.append({"x": np.arange(3)})
        with pytest.raises(InvalidArgumentError, match="NaN"):
            writer.create_items("table", [1.0, 1.0, float("nan")], [writer.history["x"][-1:]])
        assert writer.create_items("table", 1.0, [writer.history["x"][-1:]]) == 3
        writer.flush()
        assert values(client, "table", 1) == [0]
        assert client.server_info()["table"].current_size == 3

    def test_one_bad_table_keeps_a_step_out_of_the_others(self, serve):
        client = serve(testing.table("a"), testing.table("b"))
        for priorities in ({"a": 1.0, "nope": 1.0}, {"a": 1.0, "b": float("nan")}):
            with pytest.raises(ValueError, match=r"nope|NaN"):
                client.insert([1], priorities)
            with pytest.raises(ValueError, match=r"nope|NaN"):
                client.insert_batch([np.zeros(2)], priorities)
        client.insert([2], {"a": 1.0})
        assert values(client, "a") == [2]


class TestEpisodes:
    def test_an_episode_counts_once_however_many_items(self, serve):
        table = testing.table("table")
        client = serve(table)
        with client.trajectory_writer(2) as writer:
            for episode in range(3):
                write(writer, *range(4), table="table")
                assert writer.episode_steps == 4
                writer.end_episode()
                assert writer.episode_steps == 0
                assert table.info.num_episodes == episode + 1
        assert table.info.num_deleted_episodes == 0

    def test_an_episode_is_gone_with_its_last_item(self, serve):
        table = reverb.Table.queue("queue", 10)
        client = serve(table)
        with client.trajectory_writer(1) as writer:
            write(writer, 0, 1)
        for deleted in (0, 1):
            values(client, count=1)
            assert table.info.num_deleted_episodes == deleted

    def test_an_item_may_span_two_episodes(self, serve):
        table = testing.table("table")
        client = serve(table)
        with client.trajectory_writer(3) as writer:
            writer.append([0])
            writer.end_episode(clear_buffers=False)
            writer.append([1])
            writer.create_item("table", 1.0, [writer.history[0][-2:]])
        assert table.info.num_episodes == 2
        (sample,) = client.sample("table", emit_timesteps=False)
        assert sample.data[0].tolist() == [0, 1]

    def test_an_open_step_ends_with_its_episode(self, serve):
        client = serve(reverb.Table.queue("queue", 10))
        writer = client.structured_writer([last_step_config()])
        writer.append([0], partial_step=True)
        assert writer.step_is_open
        writer.end_episode()
        assert not writer.step_is_open
        writer.append([1])
        writer.flush()
        assert values(client) == [0, 1]


@pytest.mark.parametrize("size", [1, 100_000])
def test_later_changes_of_an_array_are_not_seen(serve, size):
    client = serve(reverb.Table.queue("queue", 10))
    array = np.zeros(size)
    trajectory_writer = client.trajectory_writer(1)
    structured_writer = client.structured_writer([last_step_config()])
    older_writer = client.writer(1)
    trajectory_writer.append([array])
    trajectory_writer.create_item("queue", 1.0, [trajectory_writer.history[0][:]])
    structured_writer.append([array])
    older_writer.append([array])
    older_writer.create_item("queue", 1, 1.0)
    client.insert([array], {"queue": 1.0})
    client.insert_batch([array[np.newaxis]], {"queue": 1.0})
    array[:] = 1
    for writer in (trajectory_writer, structured_writer, older_writer):
        writer.flush()
    older_writer.close()
    for sample in client.sample("queue", 5, emit_timesteps=False):
        assert not sample.data[0].any()


def test_many_writers_lose_nothing(serve, background):
    client = serve(reverb.Table.queue("queue", 10))

    def run(first):
        with client.trajectory_writer(1) as writer:
            write(writer, *range(first, first + 100))

    calls = [background(run, 100 * i) for i in range(5)]
    taken = values(client, count=500)
    for call in calls:
        call.result()
    assert sorted(taken) == list(range(500))
    for i in range(5):
        own = [value for value in taken if value // 100 == i]
        assert own == sorted(own)


def test_many_waiting_items_are_warned_about(serve, capfd):
    client = serve(reverb.Table.queue("queue", 1))
    writer = client.trajectory_writer(1)
    writer.append([0])
    column = [writer.history[0][-1:]]
    for _ in range(100_001):
        writer.create_item("queue", 1.0, column)
    writer.close()
    logged = capfd.readouterr().err
    assert f"100000 items wait to be confirmed by {client.server_address}" in logged
