# SPDX-License-Identifier: Apache-2.0
"""The worst message of every method: its memory is bounded by the bytes that were sent.

A message in a list takes two bytes when it is sent and some hundred when it is decoded; so do
compressed bytes. The walk over the methods finds those that come later, too.
"""

import contextlib
import threading

import grpc
import numpy as np
import pytest

from reverb.core import protos
from support.served_apart import served_apart
from support.waiting import PATIENCE
from support.wire import messages

MIB = 2**20

FILES = (
    "reverb_service.proto",
    "replay_service.proto",
    "grpc/health/v1/health.proto",
    "grpc/reflection/v1/reflection.proto",
)

# Bytes of the messages; nearly all methods take less.
SENT = 6 * MIB


def methods():
    """All methods of a server, with their paths."""
    for name in FILES:
        for service in protos.file_descriptor(name).services_by_name.values():
            for method in service.methods:
                yield pytest.param(
                    f"/{service.full_name}/{method.name}", method.input_type, id=method.full_name
                )


def is_list(field):
    """Whether a field is repeated."""
    return (
        field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    )


def of_bytes(number, data):
    """A field of bytes, or a message in a message."""
    return messages.varint(number << 3 | 2) + messages.varint(len(data)) + data


def worst_messages(kind, size, around=()):
    """Messages of a kind, each of which fills one of its lists with what takes least when sent."""
    for field in kind.fields:
        if field.message_type is None and not is_list(field):
            continue
        if is_list(field):
            if field.message_type is None and field.cpp_type != field.CPPTYPE_STRING:
                content = of_bytes(field.number, b"\1" * size)
            else:
                one = of_bytes(field.number, b"")
                content = one * (size // len(one))
            yield field.full_name, content
        if field.message_type is not None and field.message_type not in around:
            inner = worst_messages(field.message_type, size, (*around, kind))
            for name, content in inner:
                yield name, of_bytes(field.number, content)


@contextlib.contextmanager
def peak_of(server):
    """Looks at the memory of a server all the time; the result is a list with its peak."""
    peak, stop = [0], threading.Event()

    def look():
        while not stop.is_set():
            peak[0] = max(peak[0], server.memory())
            stop.wait(0.002)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def server():
    with served_apart('testing.table("t", max_size=1)') as server:
        server.client.insert([0.0], {"t": 1.0})
        yield server
        server.client.insert([0.0], {"t": 1.0})


@pytest.fixture
def channel(server):
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        yield channel


def send(channel, path, message, compression=None):
    """Sends a message to a method of any kind, and waits for the first answer or the error."""
    call = channel.stream_stream(path)(
        iter([message]), timeout=20 * PATIENCE, compression=compression
    )
    try:
        answer = next(call, None)
    except grpc.RpcError as error:
        answer = error
    finally:
        call.cancel()
    is_error = isinstance(answer, grpc.RpcError)
    assert not is_error or answer.code() != grpc.StatusCode.DEADLINE_EXCEEDED, path
    return answer


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip], ids=["plain", "gzip"])
@pytest.mark.parametrize(("path", "kind"), list(methods()))
def test_the_worst_message_of_a_method(server, channel, path, kind, compression):
    # The first call of a kind makes what stays.
    worst = list(worst_messages(kind, SENT)) or [("an unknown field", of_bytes(999, b"\0" * SENT))]
    if not path.endswith("/Drain"):
        send(channel, path, b"")
    for name, message in worst:
        before = server.memory()
        with peak_of(server) as peak:
            send(channel, path, message, compression)
        taken = peak[0] - before
        assert taken < 3 * len(message) + 16 * MIB, f"{name}: {taken / MIB:.0f} MiB"


def honest_updates():
    request = protos.MutatePrioritiesRequest(table="t")
    for key in range(2**63, 2**63 + 300_000):
        request.updates.add(key=key, priority=1.0)
    return request


def honest_items():
    chunk = messages.chunk(1, np.arange(3))
    items = [messages.item(key, "t", (1, 0, 1, 0)) for key in range(50_000)]
    return messages.insert([chunk], items, keep=[1])


def large_chunk():
    data = np.random.default_rng(0).integers(0, 256, (1, 64 * MIB), dtype=np.uint8)
    return messages.insert([messages.chunk(1, data)], [messages.item(1, "t", (1, 0, 1, 0))])


@pytest.mark.parametrize(
    ("method", "make"),
    [
        ("MutatePriorities", honest_updates),
        ("InsertStream", honest_items),
        ("InsertStream", large_chunk),
    ],
)
def test_a_large_honest_message(server, channel, method, make):
    message = make().SerializeToString()
    path = f"/deepmind.reverb.ReverbService/{method}"
    before = server.memory()
    with peak_of(server) as peak:
        answer = send(channel, path, message)
    assert answer is not None
    assert not isinstance(answer, grpc.RpcError), answer
    taken = peak[0] - before
    assert taken < 3 * len(message) + 16 * MIB, f"{taken / MIB:.0f} MiB for {len(message):,} bytes"
