# SPDX-License-Identifier: Apache-2.0
"""Replays messages of the released client: they must be confirmed, stored and read back."""

import pathlib
import struct

import numpy as np
import pytest

from conformance.peer_programs.arrays import encode
from reverb.core import protos
from support.compared_packages import PACKAGES
from support.wire.messages import essential
from support.wire.wire_client import WireClient

_CAPTURES = pathlib.Path(__file__).parent / "captures"
_STREAMS = sorted(path.stem for path in (_CAPTURES / "streams").glob("*.bin"))


pytestmark = pytest.mark.parametrize("server", PACKAGES)


def canonical(name):
    """Returns one captured message."""
    return (_CAPTURES / "canonical" / f"{name}.bin").read_bytes()


def stream_records(name):
    """Yields direction and message of everything on a captured stream."""
    data = (_CAPTURES / "streams" / f"{name}.bin").read_bytes()
    position = 0
    while position < len(data):
        direction, compressed, size = struct.unpack_from(">cBI", data, position)
        assert not compressed
        position += 6
        yield direction.decode(), data[position : position + size]
        position += size


def requests_of(messages):
    """Returns the messages of an insert stream."""
    return [protos.InsertStreamRequest.FromString(message) for message in messages]


def tables_of(requests):
    """Returns a Fifo table for every table that the items name."""
    names = sorted({item.table for request in requests for item in request.items})
    return [{"name": name} for name in names]


def stored_samples(client, requests):
    """Samples every item that the requests inserted, by key."""
    samples = {}
    for table in tables_of(requests):
        keys = [i.key for r in requests for i in r.items if i.table == table["name"]]
        for key in keys:
            stream = client.sample_stream()
            stream.send(protos.SampleStreamRequest(table=table["name"], num_samples=1))
            (sample,) = stream.samples(1)
            stream.cancel()
            assert sample[0].item.key == key
            samples[key] = sample
            deletion = protos.MutatePrioritiesRequest(table=table["name"], delete_keys=[key])
            client.unary("MutatePriorities", deletion)
    return samples


def check_samples(client, requests):
    """Checks that the items in the tables are those of the requests, chunk by chunk."""
    sent = {chunk.chunk_key: chunk for request in requests for chunk in request.chunks}
    items = {item.key: item for request in requests for item in request.items}
    samples = stored_samples(client, requests)
    assert samples.keys() == items.keys()
    for key, (info, chunks) in samples.items():
        assert info.item.flat_trajectory == items[key].flat_trajectory
        assert info.item.priority == items[key].priority
        assert info.item.times_sampled == 1
        assert info.item.inserted_at.seconds > 0
        # In the order of first reference, each once, and what was sent.
        referenced = dict.fromkeys(
            part.chunk_key
            for column in items[key].flat_trajectory.columns
            for part in column.chunk_slices
        )
        assert [chunk.chunk_key for chunk in chunks] == list(referenced)
        for chunk in chunks:
            assert essential(chunk) == essential(sent[chunk.chunk_key])


@pytest.mark.parametrize("name", _STREAMS)
def test_a_captured_stream_is_confirmed_and_stored(name, server, serve):
    records = list(stream_records(name))
    requests = requests_of([message for direction, message in records if direction == "C"])
    confirmed = [
        key
        for direction, message in records
        if direction == "S"
        for key in protos.InsertStreamResponse.FromString(message).keys
    ]
    with WireClient(serve(server, *tables_of(requests))) as client:
        stream = client.insert_stream()
        for request in requests:
            stream.send(request.SerializeToString())
        assert sorted(stream.confirmed(len(confirmed))) == sorted(confirmed)
        stream.cancel()
        check_samples(client, requests)


@pytest.mark.parametrize(
    "names",
    [
        ["insert_req_traj_seq0", "insert_req_traj_seq1", "insert_req_traj_seq2"],
        ["insert_req_traj_batch4"],
        ["insert_req_all_dtypes"],
        ["insert_req_delta_dtypes"],
        ["insert_req_bfloat16"],
        ["insert_req_int32_plain_3", "insert_req_int32_plain_3x1"],
        ["insert_req_int32_delta_3", "insert_req_int32_delta_3x1"],
    ],
    ids=lambda names: names[0],
)
def test_canonical_messages_are_confirmed_and_stored(names, server, serve):
    messages = [canonical(name) for name in names]
    requests = requests_of(messages)
    with WireClient(serve(server, *tables_of(requests))) as client:
        stream = client.insert_stream()
        items = [item.key for request in requests for item in request.items]
        for message in messages:
            stream.send(message)
        assert sorted(stream.confirmed(len(items))) == sorted(items)
        stream.half_close()
        assert stream.status()[0].name == "OK"
        check_samples(client, requests)


_ALL_DTYPES = [
    np.asarray([1.5], np.float16),
    np.asarray([1.5], np.float32),
    np.asarray([1.5], np.float64),
    np.asarray([-1], np.int8),
    np.asarray([-2], np.int16),
    np.asarray([-3], np.int32),
    np.asarray([-4], np.int64),
    np.asarray([200], np.uint8),
    np.asarray([60000], np.uint16),
    np.asarray([4_000_000_000], np.uint32),
    np.asarray([2**63], np.uint64),
    np.asarray([True]),
    np.asarray([1 + 2j], np.complex64),
    np.asarray([1 + 2j], np.complex128),
    np.asarray(["héllo".encode()], object),
    np.asarray([b"\x00\xff"], object),
    np.asarray([[b"a", b"bcd"]], object),
    np.zeros((1, 0), np.float32),
    np.zeros((1, 3, 0), np.int32),
    np.zeros((1, 0), object),
    np.zeros((1, 100), np.float32),
    np.asarray([[True, False, True]]),
]

_DELTA_DTYPES = [
    np.asarray([[True], [False], [True]]),
    np.asarray([[1.5], [2.5], [3.5]], np.float32),
    np.asarray([[1.0], [2.0], [3.0]], np.float16),
    np.asarray([[-32768], [32767], [0]], np.int16),
    np.asarray([[1, 2, 3], [4, 4, 0], [-1, 9, 2**31 - 1]], np.int32),
    np.asarray([[2**62], [-(2**62)], [3]], np.int64),
    np.asarray([[127, -128], [-128, 127], [0, 1]], np.int8),
    np.asarray([[[0, 1], [2, 3]], [[5, 5], [5, 5]], [[0, 0], [0, 0]]], np.int32),
    np.asarray([[b"x"], [b"yy"], [b""]], object),
    np.asarray([7, 9, 11], np.int32),
    np.asarray([[65535], [0], [7]], np.uint16),
    np.asarray([[4_000_000_000], [1], [0]], np.uint32),
    np.asarray([[2**64 - 1], [0], [5]], np.uint64),
    np.asarray([[250, 5], [5, 250], [0, 0]], np.uint8),
]

_DECODED = {
    "insert_req_all_dtypes": _ALL_DTYPES,
    "insert_req_delta_dtypes": _DELTA_DTYPES,
    "insert_req_int32_plain_3": [np.asarray([5, 7, 4], np.int32)],
    "insert_req_int32_plain_3x1": [np.asarray([[5], [7], [4]], np.int32)],
    "insert_req_int32_delta_3": [np.asarray([5, 7, 4], np.int32)],
    "insert_req_int32_delta_3x1": [np.asarray([[5], [7], [4]], np.int32)],
}


@pytest.mark.parametrize("reader", PACKAGES)
@pytest.mark.parametrize("name", list(_DECODED))
def test_canonical_messages_decode_to_what_was_written(name, reader, server, serve, worker_of):
    request = protos.InsertStreamRequest.FromString(canonical(name))
    request.items[0].table = "table"
    address = serve(server, {"name": "table"})
    with WireClient(address) as client:
        stream = client.insert_stream()
        stream.send(request)
        stream.confirmed(1)
        stream.cancel()
    caller = worker_of(reader, "client")
    (sample,) = caller.call("read", address=address, count=1, how="sample")
    assert sample["columns"] == [encode(column) for column in _DECODED[name]]


def test_captured_requests_of_the_other_methods(server, serve):
    tables = [{"name": "prio", "sampler": "Prioritized 0.8"}, {"name": "lifo"}]
    insertion = protos.InsertStreamRequest.FromString(canonical("insert_req_int32_plain_3"))
    with WireClient(serve(server, *tables)) as client:
        stream = client.insert_stream()
        stream.send(insertion)
        stream.confirmed(1)
        stream.cancel()
        assert client.unary("MutatePriorities", canonical("mutate_req")) == b""
        stream = client.sample_stream()
        stream.send(canonical("sample_req"))
        ((info, chunks),) = stream.samples(1)
        assert info.item.key == insertion.items[0].key
        assert [essential(chunk) for chunk in chunks] == [essential(insertion.chunks[0])]
        stream.cancel()
        assert client.unary("Reset", canonical("reset_req")) == b""
        stream = client.connection_stream()
        stream.send(protos.InitializeConnectionRequest(pid=1, table_name="lifo"))
        assert [answer.address for answer in stream.receive_all()] in ([], [0])
        assert stream.status()[0].name == "OK"


def test_captured_answers_can_be_read(server):
    if server != "ours":
        pytest.skip("it is about the messages of this package")
    info = protos.ServerInfoResponse.FromString(canonical("serverinfo_resp"))
    names = {table.name: table for table in info.table_info}
    assert len(names) == 9
    heap = names["heap"]
    assert heap.sampler_options.WhichOneof("distribution") == "heap"
    assert not heap.sampler_options.heap.min_heap
    assert heap.remover_options.heap.min_heap
    assert heap.rate_limiter_info.HasField("insert_stats")
    sampled = protos.SampleStreamResponse.FromString(canonical("sample_resp_int32_plain_3"))
    assert sampled.entries[0].data[0].SerializeToString() == canonical("chunk_int32_plain_3")
