# SPDX-License-Identifier: Apache-2.0
"""Promises of a scan on both paths: every item once, oldest first, without side effects."""

import dataclasses
import gc
import pathlib
import textwrap

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import (
    SignatureMismatchError,
    TableNotFoundError,
    UnavailableError,
)
from reverb.specs import TensorSpec
from support.hosts import on_both_hosts
from support.programs import Program

# Items of this size are not read ahead to the end of a table of as many.
LARGE = 400_000
NUM_LARGE = 150

SIGNATURE = {"a": TensorSpec([None], np.int64), "b": (TensorSpec([None, 2], np.float32),)}


def insert(client, *values, table="table", priority=1.0):
    client.insert_batch([np.asarray(values)], {table: priority})


def insert_large(client, values):
    """Items that do not compress; the first byte of each is its value."""
    rng = np.random.default_rng(0)
    with client.trajectory_writer(1) as writer:
        for value in values:
            step = rng.integers(0, 256, LARGE, np.uint8)
            step[0] = value
            writer.append([step])
            writer.create_item("table", 1.0, {"x": writer.history[0][-1]})


def value(sample):
    return int(sample.data[0].ravel()[0])


def values(samples):
    return [value(sample) for sample in samples]


def counters(table):
    """All that a table tells of itself, but for the time that passed."""
    return dataclasses.replace(table.info, table_worker_time=None)


class TestItems:
    def test_thousands_come_over_any_number_of_messages(self, serve):
        client = serve(testing.table(max_size=30_000))
        for start in range(0, 30_000, 10_000):
            insert(client, *range(start, start + 10_000))
        assert values(client.scan("table")) == list(range(30_000))

    def test_the_data_is_what_a_sample_has(self, serve):
        client = serve(testing.table())
        with client.trajectory_writer(10) as writer:
            for i in range(10):
                step = {"a": np.full((2, 3), i, np.float32), "b": np.int64(i), "c": f"step {i}"}
                writer.append(step)
            history = writer.history
            for length in (1, 4, 10):
                trajectory = {
                    "a": history["a"][-length:],
                    "squeezed": history["b"][-1],
                    "strided": history["b"][::3],
                    "text": history["c"][-2:],
                }
                writer.create_item("table", 1.0, trajectory)
        samples = list(client.scan("table"))
        assert [sample.data[0].shape for sample in samples] == [(1, 2, 3), (4, 2, 3), (10, 2, 3)]
        by_key = {sample.info.key: sample for sample in samples}
        assert len(by_key) == 3
        for sampled in client.sample("table", 30, emit_timesteps=False):
            scanned = by_key[sampled.info.key].data
            assert isinstance(scanned, list)
            assert [column.dtype for column in scanned] == [it.dtype for it in sampled.data]
            for column, expected in zip(scanned, sampled.data, strict=True):
                np.testing.assert_array_equal(column, expected)

    def test_the_info_is_that_of_an_item_that_was_not_drawn(self, serve):
        client = serve(testing.table())
        insert(client, 1, 2, priority=[3.0, 4.0])
        list(client.sample("table", 3))
        first, second = client.scan("table")
        assert type(first) is reverb.ReplaySample
        assert type(first.info) is reverb.SampleInfo
        assert first.info[1:] == (0.0, 2, 3.0, 3)
        assert second.info[1:] == (0.0, 2, 4.0, 0)
        sampled = next(client.sample("table", emit_timesteps=False))
        assert first.info.key == sampled.info.key


class TestSignature:
    def test_data_is_nested_like_the_signature_if_asked(self, serve):
        client = serve(testing.table(signature=SIGNATURE))
        client.insert({"a": np.int64(1), "b": (np.zeros(2, np.float32),)}, {"table": 1.0})
        (sample,) = client.scan("table", unpack_as_table_signature=True)
        assert sample.data["a"].tolist() == [1]
        assert sample.data["b"][0].tolist() == [[0.0, 0.0]]
        (flat,) = client.scan("table")
        assert [column.shape for column in flat.data] == [(1,), (1, 2)]

    def test_an_item_that_does_not_fit_is_an_error(self, serve):
        client = serve(testing.table(signature=SIGNATURE))
        with client.trajectory_writer(1, validate_items=False) as writer:
            writer.append([1])
            writer.create_item("table", 1.0, {"x": writer.history[0][:]})
        with pytest.raises(SignatureMismatchError, match="1 columns"):
            next(client.scan("table", unpack_as_table_signature=True))


class TestNobodyNotices:
    def test_no_counter_changes(self, serve):
        table = reverb.Table.queue("table", 10)
        client = serve(table)
        insert(client, *range(10))
        before = counters(table)
        assert values(client.scan("table")) == list(range(10))
        assert counters(table) == before
        assert table.info.num_unique_samples == 0
        assert values(client.sample("table", 10, emit_timesteps=False)) == list(range(10))

    def test_inserts_that_wait_are_neither_seen_nor_disturbed(self, serve, background, until):
        table = reverb.Table.queue("table", 3)
        client = serve(table)
        call = background(insert, client, *range(5))
        until(lambda: table.info.current_size == 3)
        assert values(client.scan("table")) == [0, 1, 2]
        assert call.running
        assert values(client.sample("table", 2, emit_timesteps=False)) == [0, 1]
        call.result()
        assert values(client.scan("table")) == [2, 3, 4]


class TestChangesInTheMiddle:
    def test_it_begins_with_the_first_next(self, serve):
        client = serve(testing.table())
        samples = client.scan("table")
        insert(client, 1)
        assert value(next(samples)) == 1
        insert(client, 2)
        assert list(samples) == []

    def test_two_scans_at_once_do_not_know_of_each_other(self, serve):
        client = serve(testing.table(max_size=5000))
        insert(client, *range(5000))
        pairs = list(zip(client.scan("table"), client.scan("table"), strict=True))
        assert [(value(a), value(b)) for a, b in pairs] == [(i, i) for i in range(5000)]


class TestEnds:
    def test_an_unknown_table_is_named_with_those_there_are(self, serve):
        client = serve(testing.table("one"), testing.table("two"))
        samples = client.scan("three")
        with pytest.raises(TableNotFoundError, match=r"three.*one"):
            next(samples)
        assert list(samples) == []

    def test_a_server_that_stops_in_the_middle_is_an_error(self, start, connect):
        server = start(testing.table(max_size=NUM_LARGE))
        client = connect(server, connect_timeout_s=1)
        insert_large(client, range(NUM_LARGE))
        samples = client.scan("table")
        next(samples)
        server.stop()
        with pytest.raises(UnavailableError, match=r"scan of table table broke off after \d+ item"):
            list(samples)
        with pytest.raises(UnavailableError, match="No server answered"):
            next(client.scan("table"))

    def test_a_server_that_starts_later_is_waited_for(self, start, connect, background):
        first = start(testing.table())
        client = connect(first)
        first.stop()
        call = background(lambda: values(client.scan("table")))
        again = start(testing.table(), port=first.port)
        assert call.result() == []
        insert(connect(again), 3)
        assert values(client.scan("table")) == [3]

    @pytest.mark.parametrize("how", ["close", "drop"])
    def test_a_scan_that_is_left_holds_nothing(self, serve, how):
        client = serve(testing.table(max_size=NUM_LARGE))
        insert_large(client, range(NUM_LARGE))
        for _ in range(5):
            samples = client.scan("table")
            next(samples)
            if how == "close":
                samples.close()
            del samples
            gc.collect()
        assert len(values(client.scan("table"))) == NUM_LARGE

    def test_a_scan_outlives_its_client(self, serve):
        client = serve(testing.table())
        insert(client, *range(10))
        samples = client.scan("table")
        next(samples)
        del client
        gc.collect()
        assert values(samples) == list(range(1, 10))

    def test_large_items_do_not_gather(self, serve):
        client = serve(testing.table(max_size=2 * NUM_LARGE))
        insert_large(client, np.arange(2 * NUM_LARGE) % 256)
        list(client.scan("table"))
        before = most = resident_bytes()
        for i, sample in enumerate(client.scan("table")):
            assert value(sample) == i % 256
            most = max(most, resident_bytes())
        # The table's 120 MB are in this process too, and were there before.
        assert most - before < 60e6


def resident_bytes():
    pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


@on_both_hosts
@pytest.mark.parametrize("end", ["", "server.stop()"])
def test_a_program_may_end_with_a_scan_open(host, end):
    source = f"""
        import sys
        import numpy as np
        import reverb
        from reverb import testing

        server = reverb.Server([testing.table()])
        client = reverb.Client(f"{{sys.argv[1]}}:{{server.port}}")
        client.insert_batch([np.zeros((500, 50_000), np.uint8)], {{"table": 1.0}})
        samples = client.scan("table")
        next(samples)
        {end}
        print("end")
    """
    with Program(textwrap.dedent(source), host) as program:
        assert program.line() == "end"
        assert (program.ended(), program.errors) == (0, "")
