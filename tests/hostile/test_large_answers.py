# SPDX-License-Identifier: Apache-2.0
"""Answers that are larger than the data that they are made of: what they take is bounded.

Each kind of request meets each kind of item whose size does not follow from its bytes.
"""

import numpy as np
import pytest

import reverb
from reverb.core import protos
from support.good_client import GoodClient
from support.programs import run_fresh
from support.served_apart import served_apart
from support.waiting import PATIENCE, wait_until
from support.wire import messages
from support.wire.raw_http2 import Http2
from support.wire.wire_client import WireClient

MIB = 2**20
# Most bytes that a server prepares for a connection, and for each stream.
CONNECTION, STREAM = 26 * MIB, 64 * 1024

TABLES = """
    *(testing.table(it, max_size=100_000) for it in ("step", "columns", "slices", "chunks")),
    reverb.Table.queue("queue", 1000),
"""

SAMPLE = "/deepmind.reverb.ReverbService/SampleStream"
MANY = 2**62
LONGEST = 65_536


def long_window(**fields):
    window = protos.SampleStreamRequest.Window(length=LONGEST, pads_right=True, **fields)
    return {"num_samples": MANY, "window": window}


REQUESTS = {
    "plain": {"num_samples": MANY},
    "whole": {"num_samples": 4_096, "all_or_nothing": True},
    "distinct": {"num_samples": MANY, "distinct": True},
    "selected": {"num_samples": MANY, "columns": [0]},
    "padded": long_window(knows_times=True),
    "padded for an older client": long_window(),
    "scanned": None,
}


def fill(client):
    """One step; many columns; many slices of one chunk; many chunks."""
    for _ in range(20):
        client.insert_sequence({"a": np.zeros(1, np.uint8)}, {"step": 1.0})
        columns = [np.array([at], np.uint16) for at in range(2_000)]
        client.insert_sequence(columns, {"columns": 1.0})
    with WireClient(client.server_address) as wire:
        stream = wire.insert_stream()
        slices = [(1, at, 1, 0) for at in (0, 2)] * 10_000
        items = [messages.item(at + 1, "slices", *slices) for at in range(20)]
        stream.send(messages.insert([messages.numbers(1)], items))
        chunks = [messages.numbers(key) for key in range(2, 5_002)]
        slices = [(key, 0, 1, 0) for key in range(2, 5_002)]
        items = [messages.item(at + 100, "chunks", *slices) for at in range(20)]
        stream.send(messages.insert(chunks, items))
        wait_until(lambda: client.server_info()["chunks"].current_size == 20)


@pytest.fixture(scope="module")
def server():
    with served_apart(TABLES, "max_bytes=256 * 2**20") as server:
        fill(server.client)
        yield server


@pytest.mark.parametrize("table", ["step", "columns", "slices", "chunks"])
@pytest.mark.parametrize("request_", REQUESTS)
def test_an_answer_that_nobody_reads_is_bounded(server, request_, table):
    fields = REQUESTS[request_]
    message = (
        protos.ScanRequest(table=table, kept_chunk_bytes=64 * MIB)
        if fields is None
        else protos.SampleStreamRequest(table=table, **fields)
    ).SerializeToString()
    method = "/reverb.ReplayService/Scan" if fields is None else SAMPLE
    before = server.memory()
    streams = 40
    with GoodClient(server.client) as good, Http2(server.port) as reader:
        for _ in range(streams):
            reader.send(reader.open(method), message, end=fields is None)
        rounds = good.rounds
        wait_until(lambda: good.rounds > rounds + 40)
        held = server.memory() - before
        readers = server.client.status().memory.readers
    assert held < CONNECTION + streams * STREAM + 32 * MIB, f"{held / MIB:.0f} MiB"
    assert readers < CONNECTION + streams * STREAM
    assert good.slowest < 4 * PATIENCE
    wait_until(lambda: server.client.status().memory.readers == 0)


@pytest.mark.parametrize("table", ["step", "columns", "slices", "chunks"])
def test_such_items_are_read_as_they_are(server, table):
    length = {"slices": 20_000, "chunks": 5_000}.get(table, 1)
    # Some 0.2 s an item of two thousand columns.
    count = 3 if table == "columns" else 30
    batch = server.client.sample_batch(table, count)
    assert {it.shape[:2] for it in batch.data} == {(count, length)}
    window = reverb.Window(length + 1_000, pad="right")
    padded = server.client.sample_batch(table, count, window=window)
    whole = batch.data[0][0]
    for part, steps in zip(padded.data[0], padded.info.window_mask.sum(1), strict=True):
        np.testing.assert_array_equal(part[:steps], whole[length - steps :])
        assert (part[steps:] == whole[-1]).all()
    assert sum(1 for _ in server.client.scan(table)) == 20


class TestAnOlderClient:
    """A client that does not know `times` gets a slice for each step of padding."""

    def read(self, server, table, length, count=1):
        with WireClient(f"localhost:{server.port}") as client:
            stream = client.sample_stream()
            request = protos.SampleStreamRequest(table=table, num_samples=count)
            request.window.length, request.window.pads_right = length, True
            stream.send(request)
            return stream.receive().entries[0].info.item.flat_trajectory

    def test_it_can_read_the_padding(self, server):
        slices = self.read(server, "step", 1_000).columns[0].chunk_slices
        assert len(slices) == 1_000
        assert {(it.length, it.times) for it in slices} == {(1, 0)}

    def test_too_much_of_it_is_refused(self, server):
        with pytest.raises(AssertionError) as caught:
            self.read(server, "columns", 1_000)
        text = str(caught.value)
        assert "INVALID_ARGUMENT: The padding of a window of item" in text
        assert "takes 61,938,000 bytes in the answer to this client, which is older" in text
        assert "at most 4,194,304 are sent. Update the client, or request a shorter window" in text


BATCH = """
    import numpy as np, reverb
    from reverb import testing
    from support.programs import peak_bytes

    with reverb.Server([testing.table("t")], host="127.0.0.1") as server:
        client = reverb.Client(f"127.0.0.1:{server.port}")
        client.insert_sequence({"a": np.arange(3, dtype=np.uint8)}, {"t": 1.0})
        window = reverb.Window(65_536, pad="right")
        client.sample_batch("t", 1, window=window)
        before = peak_bytes()
        batch = client.sample_batch("t", 512, window=window)
        print(peak_bytes() - before, batch.data[0].nbytes)
"""


def test_a_padded_batch_takes_at_most_twice_its_memory():
    taken, size = map(int, run_fresh(BATCH)[0].split())
    assert size == 512 * LONGEST
    assert taken < 2 * size + 16 * MIB, f"{taken / MIB:.0f} MiB"
