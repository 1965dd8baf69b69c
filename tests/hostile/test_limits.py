# SPDX-License-Identifier: Apache-2.0
"""Limits for one peer: a client that exceeds one gets an error with its name; others continue."""

import contextlib
import math
import re
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.core import protos
from reverb.errors import InvalidArgumentError, ResourceExhaustedError, UnavailableError
from support.programs import open_files
from support.served_apart import served_apart
from support.waiting import DEADLINE_S, wait_until
from support.wire import messages
from support.wire.messages import insert, item
from support.wire.raw_http2 import Http2, frame
from support.wire.wire_client import WireClient

RNG = np.random.default_rng(0)
MEGABYTE = 10**6
_GOAWAY, _ENHANCE_YOUR_CALM = 7, 0xB

TABLE = 'testing.table("table")'
OF_ONE = "limits=reverb.Limits(connections=1)"


def random_chunk(key, size):
    """A chunk of one step that does not compress."""
    return messages.chunk(key, RNG.integers(0, 256, (1, size), dtype=np.uint8))


@pytest.fixture
def limited():
    """Starts a server with limits; gives its client over TCP and a client that sends any bytes."""
    running = []

    def start(**limits):
        tables = [testing.table("table", max_size=1000), reverb.Table.queue("queue", 3)]
        server = reverb.Server(tables, host="127.0.0.1", limits=reverb.Limits(**limits))
        wire = WireClient(f"127.0.0.1:{server.port}")
        running.extend((wire.__enter__(), server))
        # Another address than localhost is reached over TCP, also in this process.
        return reverb.Client(f"127.1:{server.port}"), wire

    yield start
    for each in running:
        each.stop() if isinstance(each, reverb.Server) else each.__exit__(None, None, None)


class TestStreamBytes:
    def test_a_flood_of_chunks_ends_its_stream_and_no_other(self, limited):
        client, wire = limited(stream_bytes=MEGABYTE)
        flood = wire.insert_stream()
        with client.trajectory_writer(1) as writer:
            for key in range(20):
                flood.send(insert([random_chunk(key, 100_000)]))
                writer.append([np.int64(key)])
                writer.create_item("table", 1.0, [writer.history[0][-1:]])
                writer.flush()
        code, text = flood.status()
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert re.search(
            r"This insert stream holds 1,0\d\d,\d{3} bytes of chunks for later items; the limit is "
            r"1,000,000 bytes \(Limits\.stream_bytes\)\. Create items, or let go of chunks",
            text,
        ), text
        assert client.server_info()["table"].current_size == 20

    def test_a_keep_list_that_keeps_everything(self, limited):
        _, wire = limited(stream_bytes=MEGABYTE)
        stream = wire.insert_stream()
        for key in range(9):
            data = random_chunk(key, 100_000)
            stream.send(insert([data], [item(key, "table", (key, 0, 1, 0))], keep=range(key + 1)))
        stream.confirmed(9)
        data = random_chunk(9, 100_000)
        stream.send(insert([data], [item(9, "table", (9, 0, 1, 0))], keep=range(10)))
        # The item itself was inserted, and that is told.
        stream.confirmed(1)
        assert stream.status()[0] == grpc.StatusCode.RESOURCE_EXHAUSTED

    def test_chunks_that_are_let_go_do_not_count(self, limited):
        _, wire = limited(stream_bytes=MEGABYTE)
        stream = wire.insert_stream()
        for key in range(30):
            data = random_chunk(key, 300_000)
            stream.send(insert([data], [item(key, "table", (key, 0, 1, 0))], keep=[key]))
        stream.confirmed(30)

    def test_small_chunks_count_with_their_overhead(self, limited):
        _, wire = limited(stream_bytes=MEGABYTE)
        stream = wire.insert_stream()
        data = random_chunk(0, 1)
        for first in range(0, 20_000, 1000):
            chunks = []
            for key in range(first, first + 1000):
                chunk = protos.ChunkData()
                chunk.CopyFrom(data)
                chunk.chunk_key = key
                chunks.append(chunk)
            stream.send(insert(chunks))
        assert stream.status()[0] == grpc.StatusCode.RESOURCE_EXHAUSTED

    def test_a_writer_of_this_package_gets_the_error(self, limited):
        client, _ = limited(stream_bytes=MEGABYTE)
        writer = client.trajectory_writer(40)
        with pytest.raises(ResourceExhaustedError, match=r"Limits\.stream_bytes"):  # noqa: PT012
            for _ in range(40):
                writer.append([RNG.integers(0, 256, 100_000, dtype=np.uint8)])
                writer.create_item("table", 1.0, [writer.history[0][:]])
                writer.flush()
        with pytest.raises(ResourceExhaustedError):
            writer.append([np.zeros(1, np.uint8)])
        client.insert([1], {"table": 1.0})


class TestMessageBytes:
    def test_of_an_insert_stream(self, limited):
        client, wire = limited(message_bytes=MEGABYTE)
        stream = wire.insert_stream()
        stream.send(insert([random_chunk(1, 900_000)], [item(1, "table", (1, 0, 1, 0))]))
        stream.confirmed(1)
        stream.send(insert([random_chunk(2, 1_100_000)], [item(2, "table", (2, 0, 1, 0))]))
        code, text = stream.status()
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert re.fullmatch(
            r"A message of 1,1\d\d,\d{3} bytes is larger than the limit of 1,000,000 bytes "
            r"\(Limits\.message_bytes\)\. Send less at once, or raise the limit of the server\.",
            text,
        ), text
        with pytest.raises(ResourceExhaustedError, match=r"Limits\.message_bytes"):
            client.insert([np.frombuffer(RNG.bytes(2 * MEGABYTE), np.uint8)], {"table": 1.0})
        assert client.server_info()["table"].current_size == 1

    def test_of_other_calls(self, limited):
        client, _ = limited(call_bytes=10_000)
        client.mutate_priorities("table", {key: 1.0 for key in range(100)})
        with pytest.raises(ResourceExhaustedError, match=r"10,000 bytes \(Limits\.call_bytes\)"):
            client.mutate_priorities("table", {key: 1.0 for key in range(10_000)})
        client.insert([np.frombuffer(RNG.bytes(20_000), np.uint8)], {"table": 1.0})
        assert client.sample_batch("table", 1).data[0].shape == (1, 1, 20_000)


class TestConnections:
    def test_one_more_is_told_the_limit_until_another_leaves(self):
        tables, limits = [testing.table("table")], reverb.Limits(connections=1)
        with reverb.Server(tables, host="127.0.0.1", limits=limits) as server:
            address = f"127.1:{server.port}"
            with Http2(server.port) as first:
                with pytest.raises(
                    UnavailableError,
                    match=r"it refused the connection: Limits\.connections is 1, and as many "
                    r"clients are connected",
                ):
                    reverb.Client(address, connect_timeout_s=0.3).server_info()
                with socket.create_connection(("127.0.0.1", server.port), timeout=10) as one_more:
                    received = one_more.makefile("rb").read()
                reason = struct.pack(">II", 0, _ENHANCE_YOUR_CALM)
                text = b"Limits.connections is 1, and as many clients are connected"
                assert received == frame(_GOAWAY, 0, 0, reason + text)
                first.ping()
            assert "table" in reverb.Client(address, connect_timeout_s=20).server_info()

    def test_a_call_of_a_grpc_client_fails_at_once(self):
        with (
            served_apart(TABLE, OF_ONE) as served,
            Http2(served.port),
            WireClient(served.address) as wire,
        ):
            began = time.monotonic()
            for _ in range(100):
                with pytest.raises(grpc.RpcError) as failed:
                    wire.unary("ServerInfo", protos.ServerInfoRequest())
                assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
            # With settings before the GOAWAY, each call would wait for its deadline of 10 s.
            assert time.monotonic() - began < DEADLINE_S

    def test_those_who_read_nothing_cost_nothing(self):
        with served_apart(TABLE, OF_ONE) as served, contextlib.ExitStack() as stack:
            first = stack.enter_context(Http2(served.port))
            files = open_files(served.pid)
            for _ in range(300):
                one_more = socket.create_connection(("127.0.0.1", served.port), timeout=10)
                stack.enter_context(one_more)
            first.ping()
            wait_until(lambda: open_files(served.pid) <= files, deadline_s=5)
            first.ping()
            served.program.wait_for_error("which is the limit (Limits.connections)")
            assert served.program.errors.count("refused the connection") == 1

    def test_many_threads_insert_with_few_streams(self, limited):
        # A stream that is kept for the next insert must not keep others from having one.
        client, _ = limited(streams_per_connection=16)

        def insert_often(number):
            for _ in range(5):
                client.insert_batch([np.full(3, number)], {"table": 1.0})

        with ThreadPoolExecutor(40) as threads:
            list(threads.map(insert_often, range(40)))
        assert client.server_info(timeout=20)["table"].current_size == 600
        assert client.sample_batch("table", 8, timeout_ms=20_000).data[0].shape == (8, 1)


class TestStreams:
    def test_one_more_is_refused_until_another_leaves(self, limited):
        client, wire = limited(streams=16)
        with Http2(client_port(client)) as others:
            streams = [others.open("InsertStream") for _ in range(16)]
            others.ping()
            with pytest.raises(grpc.RpcError) as refused:
                wire.unary("ServerInfo", protos.ServerInfoRequest())
            text = (
                "The server has 16 open calls, which is its limit (Limits.streams). Try again "
                "later, or raise the limit."
            )
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
            assert refused.value.details() == text
            impatient = reverb.Client(client.server_address, connect_timeout_s=0.3)
            with pytest.raises(UnavailableError, match=re.escape(text)):
                impatient.server_info()
            with ThreadPoolExecutor(1) as thread:
                waiting = thread.submit(client.insert, [1], {"table": 1.0})
                assert not waiting.done()
                for stream in streams[:8]:
                    others.cancel(stream)
                waiting.result(timeout=20)
            others.ping()
        assert client.server_info(timeout=20)["table"].current_size == 1

    def test_a_writer_waits_for_room_and_loses_nothing(self, limited):
        client, _ = limited(streams=16)
        writer = client.trajectory_writer(1)
        with Http2(client_port(client)) as others:
            for _ in range(16):
                others.open("InsertStream")
            others.ping()
            for step in range(3):
                writer.append([np.int64(step)])
                writer.create_item("table", 1.0, [writer.history[0][-1:]])
        writer.flush(timeout_ms=20_000)
        assert client.server_info(timeout=20)["table"].current_size == 3

    def test_a_connection_with_very_many_leaves_some_to_others(self, limited):
        client, _ = limited(streams=64)
        with Http2(client_port(client)) as flood:
            for _ in range(500):
                flood.open("InsertStream")
            flood.ping()
            for step in range(20):
                client.insert([step], {"table": 1.0})
            assert client.sample_batch("table", 4, timeout_ms=20_000).data[0].shape == (4, 1)
            with Http2(client_port(client)) as another:
                with ThreadPoolExecutor(4) as threads:
                    calls = [threads.submit(client.server_info) for _ in range(20)]
                    assert all("table" in call.result(timeout=20) for call in calls)
                another.ping()


def client_port(client):
    """The port of a client's server."""
    return int(client.server_address.rpartition(":")[2])


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"stream_bytes": 0}, r"Limits\.stream_bytes must be at least 1, got 0"),
        ({"connections": -5}, r"Limits\.connections must be at least 1, got -5"),
        (
            {"message_bytes": 2**32},
            r"Limits\.message_bytes must be at least 1 and at most 4,294,967,295, got 4,29",
        ),
        # An idle client keeps a few streams for its next calls.
        (
            {"streams_per_connection": 2},
            r"Limits\.streams_per_connection must be at least 16 and at most 4,294,967,295, got 2",
        ),
        ({"streams": 15}, r"Limits\.streams must be at least 16, got 15\."),
        ({"stream_bytes": 2**64}, r"Limits\.stream_bytes must be at most \d+, got"),
        *(
            (
                {"unread_timeout_s": timeout},
                rf"Limits\.unread_timeout_s must be above 0 and at most \d+, got {timeout}",
            )
            for timeout in (0, -1, math.inf, math.nan)
        ),
    ],
)
def test_a_limit_out_of_its_range_is_refused(limits, text):
    with pytest.raises(InvalidArgumentError, match=text):
        reverb.Limits(**limits)


def test_limits_are_of_their_own_type():
    with pytest.raises(TypeError, match=r"limits must be a reverb\.Limits"):
        reverb.Server([testing.table("table")], limits={"connections": 1})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_default_bounds_a_flood():
    with served_apart(TABLE) as served, WireClient(served.address) as wire:
        stream = wire.insert_stream()
        data = random_chunk(0, 4 * MEGABYTE)
        for key in range(400):
            data.chunk_key = key
            stream.send(insert([data]))
        assert stream.status()[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert served.memory() < 1_400 * MEGABYTE
        assert "table" in served.client.server_info(timeout=20)
