# SPDX-License-Identifier: Apache-2.0
"""Streams used in ways nobody meant: floods, clients that die, readers that do not read."""

import contextlib
import socket
import struct
import threading

import grpc
import numpy as np
import pytest

import reverb
from reverb.core import protos
from support.programs import Program, open_files
from support.wire import messages
from support.wire.messages import insert, item
from support.wire.raw_http2 import Http2
from support.wire.wire_client import WireClient

MEGABYTE = 10**6


RNG = np.random.default_rng(0)


def random_chunk(key, size):
    """A chunk of one step that does not compress."""
    return messages.chunk(key, RNG.integers(0, 256, (1, size), dtype=np.uint8))


def settled(server, until, limit):
    """Waits until the server holds less memory than that."""
    until(lambda: server.memory() < limit)


def test_chunks_without_an_item(server, wire, until):
    # Chunks held for a stream live as long as the stream and no longer.
    before = server.memory()
    stream = wire.insert_stream()
    data = random_chunk(0, 4000)
    for key in range(7_500):
        data.chunk_key = key
        stream.send(insert([data]))
    # They were all read once something that comes after them is answered.
    stream.send(insert([], [item(5, "items", (0, 0, 1, 0))], keep=[0]))
    stream.confirmed(1)
    assert server.memory() < before + 100 * MEGABYTE
    stream.cancel()
    settled(server, until, before + 20 * MEGABYTE)


def test_chunks_that_are_let_go_are_freed(server, wire, until):
    stream = wire.insert_stream()
    before = server.memory()
    for key in range(300):
        data = random_chunk(key, MEGABYTE)
        stream.send(insert([data], [item(key, "good", (key, 0, 1, 0))], keep=[key]))
        if key % 10 == 9:
            stream.confirmed(10)
    # Ten items, the one chunk that is kept, and what is on its way.
    assert server.memory() < before + 150 * MEGABYTE
    stream.cancel()


@pytest.mark.parametrize("end", ["cancel", "reset", "close", "shutdown"])
def test_streams_that_die_in_the_middle(server, until, end):
    for _ in range(3):
        one_dying_client(server.port, end, 12)
    until(lambda: open_files(server.program.pid) < 60)
    before = server.memory()
    for _ in range(10):
        one_dying_client(server.port, end, 12)
    settled(server, until, before + 100 * MEGABYTE)
    until(lambda: open_files(server.program.pid) < 60)
    # Items that were cut off are not there, and nobody waits for them.
    assert server.client.server_info()["queue"].current_size <= 3


def one_dying_client(port, end, megabytes):
    """Sends chunks, an item, and a part of a message, and is gone."""
    with Http2(port) as client:
        stream = client.open("InsertStream")
        for key in range(megabytes):
            client.send(stream, insert([random_chunk(key, MEGABYTE)]).SerializeToString())
        waiting = [item(key, "queue", (key % megabytes, 0, 1, 0)) for key in range(8)]
        client.send(stream, insert([], waiting, keep=range(megabytes)).SerializeToString())
        client.send_part(stream, random_chunk(99, MEGABYTE).SerializeToString())
        if end == "cancel":
            client.cancel(stream)
            client.ping()
        elif end == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif end == "shutdown":
            client.socket.shutdown(socket.SHUT_WR)


WRITER = """
    import sys
    import numpy as np
    import reverb

    client = reverb.Client(sys.argv[1])
    writer = client.trajectory_writer(1, validate_items=False)
    rng = np.random.default_rng()
    for i in range(200):
        writer.append([rng.integers(0, 256, 1_000_000, dtype=np.uint8)])
        writer.create_item(sys.argv[2], 1.0, {"a": writer.history[0][-1:]})
        if i == 20:
            print("writing")
"""


def test_writers_that_are_killed(server, until):
    def kill_writers(count):
        for number in range(count):
            table = "queue" if number % 2 else "good"
            with Program(WRITER, f"127.0.0.1:{server.port}", table) as program:
                program.line()

    kill_writers(2)
    server.reset()
    files = open_files(server.program.pid)
    before = server.memory()
    kill_writers(4)
    server.reset()
    settled(server, until, before + 60 * MEGABYTE)
    until(lambda: open_files(server.program.pid) <= files)


def test_items_of_a_dead_writer_do_not_block_a_full_queue(server, until):
    writer = reverb.Client(f"127.0.0.1:{server.port}").trajectory_writer(1)
    for i in range(10):
        writer.append([i])
        writer.create_item("queue", 1.0, {"a": writer.history[0][-1:]})
    until(lambda: server.client.server_info()["queue"].current_size == 3)
    writer.close()
    del writer
    # Items that the server had read are inserted when there is room; the next writer comes after.
    other = threading.Thread(target=server.client.insert, args=([99], {"queue": 1.0}))
    other.start()
    values = []
    while 99 not in values:
        values += (
            server.client.sample_batch("queue", 1, timeout_ms=20_000).data[0].flatten().tolist()
        )
    other.join()
    assert values == [*range(len(values) - 1), 99]


def test_readers_that_read_small_items_slowly(server):
    server.client.insert_batch(np.arange(1000), {"items": 1.0})
    before = server.memory()
    with Http2(server.port, window=2**31 - 1) as client:
        stream = client.open("SampleStream")
        request = protos.SampleStreamRequest(table="items", num_samples=2**62)
        client.send(stream, request.SerializeToString())
        received = 0
        while received < 100 * MEGABYTE:
            received += len(client.socket.recv(MEGABYTE))
        # Batches grow with what the reader takes, but not without end.
        assert server.memory() < before + 200 * MEGABYTE


def test_thousands_of_idle_streams(server, until):
    files = open_files(server.program.pid)
    before = server.memory()
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            client = stack.enter_context(Http2(server.port))
            for number in range(1000):
                client.open(("InsertStream", "SampleStream", "InitializeConnection")[number % 3])
            client.ping()
        server.check()
        assert server.memory() < before + 100 * MEGABYTE
    until(lambda: open_files(server.program.pid) <= files)
    settled(server, until, before + 50 * MEGABYTE)


def test_streams_that_are_opened_and_reset_at_once(server):
    with Http2(server.port) as client, contextlib.suppress(OSError):
        for _ in range(20_000):
            client.cancel(client.open("InsertStream"))
        client.ping()
    server.check()


def test_samples_that_nobody_waits_for_any_more(server, until):
    with WireClient(f"127.0.0.1:{server.port}") as wire:
        streams = [wire.sample_stream() for _ in range(200)]
        for stream in streams:
            stream.send(messages.sample("queue", count=1))
        until(lambda: server.client.server_info()["queue"].table_worker_time.waiting_for_inserts_ms)
        for stream in streams:
            stream.cancel()
        for stream in streams:
            assert stream.status()[0] == grpc.StatusCode.CANCELLED
    server.client.insert([7], {"queue": 1.0})
    assert server.client.sample_batch("queue", 1, timeout_ms=10_000).data == [7]
