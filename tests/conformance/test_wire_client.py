# SPDX-License-Identifier: Apache-2.0
"""Clients against a server whose every answer is scripted."""

import threading
from typing import Any

import grpc
import numpy as np
import pytest

from reverb.core import protos
from support.compared_packages import PACKAGES
from support.package_workers import WorkerError
from support.wire import messages as m
from support.wire.scripted_server import ScriptedServer

Code = grpc.StatusCode

LIMITER_TIMEOUT = "Rate Limiter: Timeout exceeded before the right to insert was acquired."

pytestmark = pytest.mark.parametrize("client", PACKAGES)


@pytest.fixture
def server():
    """The scripted server."""
    scripted = ScriptedServer()
    yield scripted
    scripted.stop()


@pytest.fixture
def caller(client, worker_of):
    """A process for the client; it is replaced when an answer leaves it waiting."""
    return worker_of(client, "wire client")


def answer_with(*responses):
    """A sample stream that answers its first request with `responses` and then stays open."""

    def behave(requests, _):
        next(requests)
        yield from responses
        for _ in requests:
            pass

    return behave


def read(caller, server, count=1):
    """Returns the columns of the samples as (key, dtype, shape, content)."""
    samples = caller.call("read", address=server.address, count=count, how="sample")
    return [(sample["info"]["key"], sample["columns"]) for sample in samples]


def column(values, dtype=np.int32):
    """Returns what a worker says about a column."""
    array = np.asarray(values, dtype)
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "content": array.tobytes().hex(),
    }


def test_c1_loose_order_of_a_response(client, server, caller):
    chunks = [m.numbers(key, 2, first=10 * key) for key in (1, 2)]
    item = m.item(9, "table", (1, 0, 2, 0), (2, 0, 2, 0))
    server.on_sample = answer_with(
        m.response(m.entry(m.sample_info(item), [], end=False)),
        m.response(),
        m.response(m.entry(None, chunks[::-1], end=False)),
        m.response(m.entry(None, [], end=True)),
    )
    assert read(caller, server) == [(9, [column([10, 11, 20, 21])])]


def test_c2_chunk_that_nobody_refers_to(client, server, caller):
    chunks = [m.numbers(key, 2, first=10 * key) for key in (1, 2)]
    info = m.sample_info(m.item(9, "table", (2, 0, 2, 0)))
    server.on_sample = answer_with(m.response(m.entry(info, chunks)))
    assert read(caller, server) == [(9, [column([20, 21])])]


def test_c3_tail_and_head_share_a_message(client, server, caller):
    chunks = {key: m.numbers(key, 2, first=10 * key) for key in (1, 2, 3)}
    first = m.sample_info(m.item(8, "table", (1, 0, 2, 0), (2, 0, 2, 0)))
    second = m.sample_info(m.item(9, "table", (2, 1, 1, 0), (3, 0, 2, 0)))

    def behave(requests, _):
        asked = next(requests).num_samples
        while asked < 2:
            # A client that asks for one sample at a time gets nothing before it asks again.
            yield m.response(m.entry(first, [chunks[1]], end=False))
            yield m.response(m.entry(None, [chunks[2]]))
            asked += next(requests).num_samples
            yield m.response(m.entry(second, [chunks[2]], end=False))
            yield m.response(m.entry(None, [chunks[3]]))
            break
        else:
            yield m.response(m.entry(first, [chunks[1]], end=False))
            yield m.response(m.entry(None, [chunks[2]]), m.entry(second, [chunks[2]], end=False))
            yield m.response(m.entry(None, [chunks[3]]))
        for _ in requests:
            pass

    server.on_sample = behave
    assert read(caller, server, 2) == [
        (8, [column([10, 11, 20, 21])]),
        (9, [column([21, 30, 31])]),
    ]


def test_c4_slices_of_one_chunk_in_any_order(client, server, caller):
    item = m.item(9, "table", (1, 3, 1, 0), (1, 0, 2, 0), (1, 3, 1, 0))
    entry = m.entry(m.sample_info(item), [m.numbers(1, 4, first=10)])
    server.on_sample = answer_with(m.response(entry))
    assert read(caller, server) == [(9, [column([13, 10, 11, 13])])]


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.CANCELLED])
def test_c5_sample_stream_is_opened_again(client, server, caller, code):
    item = m.item(9, "table", (1, 0, 2, 0))
    good = answer_with(m.response(m.entry(m.sample_info(item), [m.numbers(1)])))
    attempts = []

    def behave(requests, context):
        attempts.append(1)
        if len(attempts) < 3:
            next(requests)
            context.abort(code, "come again")
        yield from good(requests, context)

    server.on_sample = behave
    assert read(caller, server) == [(9, [column([1, 2])])]
    assert len(attempts) == 3


def test_c6_limiter_timeout_ends_a_dataset(client, server, caller):
    if client == "ours":
        pytest.skip("this package has no TensorFlow here, and `Client.sample` has no timeout")

    def behave(requests, context):
        next(requests)
        context.abort(Code.DEADLINE_EXCEEDED, LIMITER_TIMEOUT)
        yield

    server.on_sample = behave
    caller.call(
        "open_dataset",
        address=server.address,
        max_in_flight_samples_per_worker=1,
        rate_limiter_timeout_ms=50,
    )
    assert caller.call("take") == []


@pytest.mark.parametrize("ending", ["UNAVAILABLE", "CANCELLED", "OK"])
def test_c7_unconfirmed_items_are_sent_again(client, server, caller, ending):
    streams: list[list[Any]] = []

    def behave(requests, context):
        streams.append([])
        for request in requests:
            streams[-1].append(request)
            if len(streams) == 1 and request.items:
                if ending == "OK":
                    return
                context.abort(Code[ending], "gone")
            if request.items:
                yield protos.InsertStreamResponse(keys=[item.key for item in request.items])

    server.on_insert = behave
    caller.call("open_writer", address=server.address)
    caller.call("write_values", values=[1])
    caller.call("flush_writer", timeout_ms=20_000)
    first, second = ([item for r in stream for item in r.items] for stream in streams[:2])
    assert [item.key for item in first] == [item.key for item in second]
    assert first[0].flat_trajectory == second[0].flat_trajectory
    chunks = [{chunk.chunk_key for r in stream for chunk in r.chunks} for stream in streams[:2]]
    assert chunks[0] == chunks[1] != set()


def test_c8_confirmations_in_any_order(client, server, caller):
    def behave(requests, _):
        keys: list[int] = []
        for request in requests:
            keys += [item.key for item in request.items]
            if len(keys) == 3:
                yield protos.InsertStreamResponse(keys=keys[::-1])

    server.on_insert = behave
    caller.call("open_writer", address=server.address)
    caller.call("write_values", values=[1, 2, 3])
    caller.call("flush_writer", timeout_ms=20_000)
    caller.call("close_writer")


@pytest.mark.parametrize(
    ("code", "parent"),
    [
        (Code.INVALID_ARGUMENT, "ValueError"),
        (Code.RESOURCE_EXHAUSTED, "IndexError"),
        (Code.UNIMPLEMENTED, "NotImplementedError"),
        (Code.INTERNAL, "RuntimeError"),
        (Code.NOT_FOUND, "RuntimeError"),
        (Code.DATA_LOSS, "RuntimeError"),
        (Code.FAILED_PRECONDITION, "RuntimeError"),
        (Code.PERMISSION_DENIED, "RuntimeError"),
        (Code.UNAUTHENTICATED, "RuntimeError"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_c9_status_of_a_stream_that_the_server_ends(client, server, caller, code, parent):
    """The client has not half-closed: a reset follows the trailers and must not hide the status."""

    def behave(requests, context):
        next(requests)
        context.abort(code, "the server says so")
        yield

    server.on_sample = behave
    with pytest.raises(WorkerError, match="the server says so") as caught:
        read(caller, server)
    assert parent in caught.value.types


def test_c9_status_of_an_insert_stream(client, server, caller):
    def behave(requests, context):
        next(requests)
        context.abort(Code.FAILED_PRECONDITION, "the server says so")
        yield

    server.on_insert = behave
    caller.call("open_writer", address=server.address)
    caller.call("write_values", values=[1])
    with pytest.raises(WorkerError, match="the server says so") as caught:
        caller.call("flush_writer", timeout_ms=20_000)
    assert "RuntimeError" in caught.value.types
    # It stays like that.
    with pytest.raises(WorkerError, match="the server says so"):
        caller.call("flush_writer", timeout_ms=20_000)


def test_c10_strings_as_values(client, server, caller):
    chunk = protos.ChunkData(chunk_key=1, data_tensors_len=1)
    proto = chunk.data.tensors.add(dtype=m.DT_STRING, string_val=[b"a", b"", b"xyz"])
    proto.tensor_shape.dim.add(size=3)
    info = m.sample_info(m.item(9, "table", (1, 0, 3, 0)))
    server.on_sample = answer_with(m.response(m.entry(info, [chunk])))
    expected = {"dtype": "string", "shape": [3], "content": [x.hex() for x in (b"a", b"", b"xyz")]}
    assert read(caller, server) == [(9, [expected])]


@pytest.mark.parametrize("damage", ["short", "garbage", "long", "lying"])
def test_c11_damaged_chunk_fails_cleanly(client, server, caller, damage):
    if client == "peer":
        pytest.skip("the peer returns whatever stands in its memory")
    chunk = m.numbers(1, 3)
    tensor = chunk.data.tensors[0]
    content = {
        "short": tensor.tensor_content[:-4],
        "garbage": b"\xff" * 20,
        "long": m.snappy(b"\0" * 1000),
        # The length of a petabyte: nobody may try to allocate it.
        "lying": m.varint(2**50) + tensor.tensor_content[1:],
    }[damage]
    tensor.tensor_content = content
    info = m.sample_info(m.item(9, "table", (1, 0, 3, 0)))
    server.on_sample = answer_with(m.response(m.entry(info, [chunk])))
    with pytest.raises(WorkerError) as caught:
        read(caller, server)
    assert "ReverbError" in caught.value.types


@pytest.mark.parametrize(
    "bad_slice",
    [(1, 2, 5, 0), (1, -1, 2, 0), (1, 0, 1, 7), (2, 0, 1, 0)],
    ids=["too long", "negative", "no such tensor", "no such chunk"],
)
def test_c11_slice_outside_of_its_chunk_fails_cleanly(client, server, caller, bad_slice):
    info = m.sample_info(m.item(9, "table", bad_slice))
    server.on_sample = answer_with(m.response(m.entry(info, [m.numbers(1, 3)])))
    with pytest.raises(WorkerError) as caught:
        read(caller, server)
    assert {"ValueError", "RuntimeError"} & set(caught.value.types)


@pytest.mark.parametrize("columns", [[], [[]]], ids=["no columns", "no slices"])
def test_c11_item_without_data_fails_cleanly(client, server, caller, columns):
    if client == "peer":
        pytest.skip("the peer's process aborts")
    item = protos.PrioritizedItem(key=9, table="table", priority=1.0)
    item.flat_trajectory.CopyFrom(m.trajectory(columns))
    entry = m.entry(m.sample_info(item), [m.numbers(1, 3)])
    server.on_sample = answer_with(m.response(entry))
    with pytest.raises(WorkerError) as caught:
        read(caller, server)
    assert "ReverbError" in caught.value.types


def test_c12_selection_becomes_slices_of_its_own(client, server, caller):
    if client == "peer":
        pytest.skip("the peer stores a contiguous run instead (D-04 of its defects)")
    done = threading.Event()

    def behave(requests, context):
        for response in server.confirm_everything(requests, context):
            yield response
            done.set()

    server.on_insert = behave
    caller.call("open_writer", address=server.address)
    caller.call("configure_writer", max_chunk_length=5)
    caller.call("write_selection", values=[10, 11, 12, 13, 14], selection=[0, 1, 3, 3, 4, 2])
    caller.call("flush_writer", timeout_ms=20_000)
    assert done.wait(10)
    (item,) = (item for request in server.received for item in request.items)
    (sent,) = (chunk for request in server.received for chunk in request.chunks)
    (flat,) = item.flat_trajectory.columns
    slices = [(s.offset, s.length) for s in flat.chunk_slices]
    assert slices == [(0, 2), (3, 1), (3, 2), (2, 1)]
    assert {s.chunk_key for s in flat.chunk_slices} == {sent.chunk_key}
    assert (sent.sequence_range.start, sent.sequence_range.end) == (0, 4)
