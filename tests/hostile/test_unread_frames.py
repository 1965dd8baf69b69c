# SPDX-License-Identifier: Apache-2.0
"""Frames that a call does not read: they take the memory of their bytes, and no more.

Each pattern of frames meets each state of a stream.
"""

import contextlib
import re
import struct

import grpc
import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.core import protos
from support.good_client import GoodClient
from support.served_apart import served_apart
from support.waiting import PATIENCE, wait_until
from support.wire import messages, raw_http2
from support.wire.raw_http2 import Http2
from support.wire.wire_client import WireClient

MIB = 2**20

TABLES = """
    testing.table("t", max_size=1000),
    reverb.Table.queue("empty", 10),
    reverb.Table.queue("full", 1),
    reverb.Table.queue("queue", 1000),
"""

SERVICE = "/deepmind.reverb.ReverbService/"
_PADDED = 8


def frame_of(data, padding=None):
    """A DATA frame of stream 0, whose number `blast` writes."""
    if padding is None:
        return raw_http2.frame(0, 0, 0, data)
    return raw_http2.frame(0, _PADDED, 0, bytes([padding]) + data + bytes(padding))


# Their content is the beginning of a message that never ends.
PATTERNS = {
    "one byte": frame_of(b"\1"),
    "no byte": frame_of(b""),
    "one byte and padding": frame_of(b"\1", padding=255),
    "100 bytes": frame_of(b"\1" * 100),
    "16 KiB": frame_of(b"\1" * 16_384),
}

SAMPLES = protos.SampleStreamRequest(table="t", num_samples=2**62)
# A stream of the service, and its first message.
STATES = {
    "waits for items": (
        SERVICE + "SampleStream",
        protos.SampleStreamRequest(table="empty", num_samples=1),
    ),
    "sends samples": (SERVICE + "SampleStream", SAMPLES),
    "watches": ("/reverb.ReplayService/Watch", protos.WatchRequest()),
    "scans": ("/reverb.ReplayService/Scan", protos.ScanRequest(table="t")),
    "has no message": (SERVICE + "SampleStream", None),
}


@pytest.fixture(scope="module")
def server():
    with served_apart(TABLES, "max_bytes=256 * 2**20") as server:
        server.client.insert_batch([np.zeros((1000, 60))], {"t": 1.0})
        yield server


def blast(server, method, first, frame, *, streams=50, size=8 * MIB):
    """A connection that sends so many bytes of frames to its streams, as long as it may."""
    connection = Http2(server.port)
    numbers = [connection.open(method) for _ in range(streams)]
    for number in numbers:
        if first is not None:
            connection.send(number, first.SerializeToString())
    frames = [frame[:5] + struct.pack(">I", number) + frame[9:] for number in numbers]
    data = b"".join(frames) * max(1, 65_536 // (len(frame) * streams))
    with contextlib.suppress(OSError):
        for _ in range(size // len(data)):
            connection.socket.sendall(data)
        connection.ping()
    return connection


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("state", STATES)
def test_unread_frames_take_what_is_sent(server, state, pattern):
    before = server.memory()
    with GoodClient(server.client) as good:
        connection = blast(server, *STATES[state], PATTERNS[pattern])
        rounds = good.rounds
        wait_until(lambda: good.rounds > rounds + 20)
        held = server.memory() - before
        counted = server.client.status().memory
    # The frames, what is prepared for a reader, and what h2 holds before it is taken in.
    assert held < (8 + 26 + 40) * MIB, f"{held / MIB:.0f} MiB"
    assert counted.streams + counted.other < 16 * MIB
    assert good.slowest < 4 * PATIENCE
    connection.socket.close()
    wait_until(lambda: server.client.status().memory.streams == 0)


def test_what_connections_leave_unread_is_counted_and_bounded(server):
    """Frames of 16 KiB to calls that read no more: those of 4 MiB a connection, at most."""
    method, first = STATES["waits for items"]
    connections = [
        blast(server, method, first, PATTERNS["16 KiB"], streams=2, size=3 * MIB) for _ in range(3)
    ]
    wait_until(lambda: server.client.status().memory.streams > 8 * MIB)
    for connection in connections:
        connection.socket.close()
    wait_until(lambda: server.client.status().memory.streams == 0)
    with Http2(server.port) as connection:
        number = connection.open(method)
        connection.send(number, first.SerializeToString())
        for _ in range(300):
            connection.send_bytes(number, b"\1" * 16_384)
        connection.end_of(number)
    wait_until(lambda: server.client.status().memory.streams == 0)


def test_the_call_that_leaves_too_much_unread_is_told_why(server):
    with WireClient(f"localhost:{server.port}") as client:
        streams = [client.sample_stream() for _ in range(3)]
        for stream in streams:
            stream.send(STATES["waits for items"][1])
            # The window of a stream has a third of them.
            for _ in range(100):
                stream.send(protos.SampleStreamRequest(table="x" * 60_000, num_samples=1))
        wait_until(lambda: any(stream.has_ended for stream in streams))
        code, text = next(stream for stream in streams if stream.has_ended).status()
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert re.fullmatch(
        r"The calls of this connection have 4,\d{3},\d{3} bytes of requests that wait, more than "
        r"4,194,304: send the next request of a stream when the last one is answered\.",
        text,
    )


def test_many_small_inserts_wait_behind_a_closed_limiter(server):
    """An honest writer, each of whose messages is a frame of a hundred bytes."""
    keys = range(1, 10_001)
    with WireClient(f"localhost:{server.port}") as client:
        stream = client.insert_stream()
        for key in keys:
            item = messages.item(key, "full", (key, 0, 1, 0))
            stream.send(messages.insert([messages.numbers(key, 1, first=key)], [item]))
        samples = server.client.sample("full", len(keys), emit_timesteps=False)
        read = [int(it.data[0][0]) for it in samples]
    assert read == list(keys)


def test_a_writer_may_send_faster_than_its_items_are_inserted():
    """Nearly as many of the smallest messages as a stream's window has, each a frame."""
    chunk = messages.insert([messages.numbers(1, 1)], keep=[1])
    frames = bytearray()
    for key in range(2**63, 2**63 + 150_000):
        item = messages.item(key, "t", (1, 0, 1, 0))
        data = messages.insert([], [item], keep=[1]).SerializeToString()
        frames += raw_http2.data_frame(1, b"\0" + struct.pack(">I", len(data)) + data)
    with (
        reverb.Server([testing.table("t", max_size=1000)], host="127.0.0.1") as server,
        Http2(server.port, window=2**31 - 1) as connection,
    ):
        client = server.localhost_client()
        assert connection.open("InsertStream") == 1
        connection.send(1, chunk.SerializeToString())
        connection.socket.sendall(frames)
        wait_until(lambda: client.status().tables["t"].inserts == 150_000)


def test_requests_that_are_sent_ahead_are_answered(server):
    """A reader may send its next requests while one is served."""
    with Http2(server.port, window=2**31 - 1) as connection:
        number = connection.open("SampleStream")
        request = protos.SampleStreamRequest(table="t", num_samples=1).SerializeToString()
        framed = b"\0" + struct.pack(">I", len(request)) + request
        for byte in framed * 200:
            connection.socket.sendall(raw_http2.data_frame(number, bytes([byte])))
        connection.send_bytes(number, b"", end=True)
        connection.end_of(number)
    assert server.client.server_info()["t"].current_size == 1000
