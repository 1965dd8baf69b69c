# SPDX-License-Identifier: Apache-2.0
"""Readers that do not read: what is prepared for them is bounded, and others go on."""

import struct
import time

import grpc
import numpy as np
import pytest

from reverb.core import protos
from support.good_client import GoodClient
from support.programs import Program
from support.served_apart import served_apart
from support.waiting import PATIENCE, wait_until
from support.wire import raw_http2
from support.wire.raw_http2 import Http2

MIB = 2**20
# Maximum of prepared data for a connection, and of further memory for each open stream.
CONNECTION = 16 * MIB
STREAM = 64 * 1024

TABLES = """
    testing.table("t", max_size=100_000),
    reverb.Table.queue("queue", 1000),
    reverb.Table.queue("order", 10_000),
"""

SERVICE = "/deepmind.reverb.ReverbService/"
OWN_SERVICE = "/reverb.ReplayService/"
MANY = 2**62


def sampling(**options):
    return SERVICE + "SampleStream", protos.SampleStreamRequest(
        table="t", num_samples=MANY, **options
    )


REFLECTION = protos.messages_of("grpc/reflection/v1/reflection.proto")
STACKING = protos.SampleStreamRequest.Stacking(batch_size=2**40)
CALLS = {
    "plain": sampling(),
    "stacked": sampling(stacking=STACKING),
    "selected": sampling(columns=[0]),
    "scan": (OWN_SERVICE + "Scan", protos.ScanRequest(table="t", kept_chunk_bytes=64 * MIB)),
    "watch": (OWN_SERVICE + "Watch", protos.WatchRequest()),
    "status": (OWN_SERVICE + "Status", protos.StatusRequest(with_streams=True)),
    "updates": (
        OWN_SERVICE + "UpdatePriorities",
        protos.UpdatePrioritiesRequest(table="t", delete_keys=range(2**63, 2**63 + 5000)),
    ),
    "reflection": (
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        REFLECTION["ServerReflectionRequest"](file_containing_symbol="reverb.ReplayService"),
    ),
}
# Calls that begin when the request is complete.
WITH_ONE_MESSAGE = ("Scan", "Watch", "Status", "UpdatePriorities")


@pytest.fixture
def served():
    with served_apart(TABLES, "max_bytes=256 * 2**20") as served:
        items = np.random.default_rng(0).random((20_000, 60))
        served.client.insert_batch([items], {"t": 1.0})
        yield served


def silent_reader(port, method, request, streams):
    """A connection with so many open calls, which reads nothing of their answers."""
    connection = Http2(port)
    message = request.SerializeToString()
    for _ in range(streams):
        connection.send(connection.open(method), message, end=method.endswith(WITH_ONE_MESSAGE))
    return connection


@pytest.mark.parametrize(
    ("call", "streams"), [("plain", 1), ("plain", 100), *((call, 1000) for call in CALLS)]
)
def test_what_is_prepared_for_a_reader_is_bounded(served, call, streams):
    before = served.memory()
    with GoodClient(served.client) as good:
        reader = silent_reader(served.port, *CALLS[call], streams)
        rounds = good.rounds
        wait_until(lambda: good.rounds > rounds + 100)
        held = served.memory() - before
        readers = served.client.status().memory.readers
    assert held < CONNECTION + streams * STREAM + 32 * MIB, f"{held / MIB:.0f} MiB"
    assert readers < CONNECTION + streams * STREAM
    assert good.slowest < 4 * PATIENCE
    reader.socket.close()
    wait_until(lambda: served.client.status().memory.readers == 0)


def test_many_connections_share_the_room_of_the_server(served):
    before = served.memory()
    with GoodClient(served.client) as good:
        readers = [silent_reader(served.port, *CALLS["plain"], 20) for _ in range(50)]
        rounds = good.rounds
        wait_until(lambda: good.rounds > rounds + 100)
        # An eighth of the server's limit, and an item for each stream.
        assert served.client.status().memory.readers < 32 * MIB + 1000 * STREAM
        assert served.memory() - before < 160 * MIB
        # A batch still comes, an item at a time.
        assert len(served.client.sample_batch("t", 256).data[0]) == 256
    assert good.slowest < 4 * PATIENCE
    for reader in readers:
        reader.socket.close()


CROWD = """
    import pathlib, socket, sys, threading

    data = pathlib.Path(sys.argv[2]).read_bytes()
    address = ("127.0.0.1", int(sys.argv[1]))
    connections = [socket.create_connection(address) for _ in range(int(sys.argv[3]))]
    threads = [threading.Thread(target=it.sendall, args=(data,)) for it in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("sent")
    sys.stdin.read()
"""


def opening(method, request, streams):
    """All that a reader sends who opens so many streams and leaves no window small."""
    payload = request.SerializeToString()
    framed = b"\0" + struct.pack(">I", len(payload)) + payload
    return raw_http2.opening(2**31 - 1) + b"".join(
        raw_http2.headers_frame(2 * number + 1, method)
        + raw_http2.data_frame(2 * number + 1, framed)
        for number in range(streams)
    )


@pytest.mark.parametrize(
    ("connections", "streams"), [(20, 100), pytest.param(100, 2000, marks=pytest.mark.slow)]
)
def test_a_client_goes_on_beside_a_crowd_of_readers(served, tmp_path, connections, streams):
    path = tmp_path / "opening"
    path.write_bytes(opening(*CALLS["plain"], streams))
    with (
        GoodClient(served.client) as good,
        Program(CROWD, str(served.port), str(path), str(connections)) as crowd,
    ):
        crowd.line()
        rounds = good.rounds
        wait_until(lambda: good.rounds > rounds + 100)
    print(f"slowest insert and sample: {good.slowest * 1000:.0f} ms")
    assert good.slowest < 4 * PATIENCE


@pytest.mark.parametrize("crowd", [0, 200])
def test_a_reader_that_pauses_gets_all_of_its_samples_in_order(served, crowd):
    count = 3000
    noise = np.random.default_rng(0).integers(0, 256, (count, 5000), dtype=np.uint8)
    served.client.insert_batch([noise], {"order": np.arange(count) + 1.0})
    others = silent_reader(served.port, *CALLS["plain"], crowd)
    with grpc.insecure_channel(f"127.0.0.1:{served.port}") as channel:
        request = protos.SampleStreamRequest(table="order", num_samples=count)
        call = channel.stream_stream(SERVICE + "SampleStream")
        answers = call(iter([request.SerializeToString()]))
        read = [next(answers)]
        wait_until(lambda: served.client.status().memory.readers > 0)
        # Longer than anything of the server's lasts, but for the end of a reader.
        time.sleep(1)
        read += answers
    entries = [it for part in read for it in protos.SampleStreamResponse.FromString(part).entries]
    priorities = [entry.info.item.priority for entry in entries if entry.HasField("info")]
    assert priorities == list(range(1, count + 1))
    others.socket.close()


def test_calls_beside_unread_streams_of_their_connection_go_on(served):
    """Without room: a scan, a batch without repetitions, and updates of keys that are not there."""
    with grpc.insecure_channel(f"127.0.0.1:{served.port}") as channel:
        method, request = CALLS["plain"]
        call = channel.stream_stream(method)
        idle = [call(iter([request.SerializeToString()])) for _ in range(40)]
        wait_until(lambda: served.client.status().memory.readers > CONNECTION // 2)

        def answers(method, request):
            stream = channel.stream_stream(method)
            return stream(iter([request.SerializeToString()]), timeout=30 * PATIENCE)

        request = protos.SampleStreamRequest(table="t", num_samples=256, distinct=True)
        sampled = [
            entry.info.item.key
            for part in answers(SERVICE + "SampleStream", request)
            for entry in protos.SampleStreamResponse.FromString(part).entries
        ]
        assert len(set(sampled)) == len(sampled) == 256
        scanned = [
            entry.info.item.key
            for part in answers(OWN_SERVICE + "Scan", protos.ScanRequest(table="t"))
            for entry in protos.SampleStreamResponse.FromString(part).entries
        ]
        assert len(set(scanned)) == len(scanned) == 20_000
        (answer,) = answers(*CALLS["updates"])
        assert len(protos.UpdatePrioritiesResponse.FromString(answer).missing_keys) == 5000
        for stream in idle:
            stream.cancel()
