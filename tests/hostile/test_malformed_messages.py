# SPDX-License-Identifier: Apache-2.0
"""Bytes that are no messages, or are not what they were."""

import random

import grpc
import pytest

from reverb.core import protos
from reverb.errors import ReverbError
from support.wire import messages
from support.wire.messages import insert, item, numbers, varint

SERVICE = "/deepmind.reverb.ReverbService/"
UNARY = ("MutatePriorities", "Reset", "ServerInfo", "Checkpoint")
STREAMS = ("InsertStream", "SampleStream", "InitializeConnection")
# Allowed results of a call. Only a missing chunk may cause INTERNAL.
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,  # By us: some requests ask for more than anybody wants to read.
}
# Responses that are read before a stream is closed.
ENOUGH = 5

# No field number, no wire type, ends too early, groups, overlong numbers, nested too deep.
NO_MESSAGES = [
    b"\x00",
    b"\xff",
    b"\x07",
    b"\x0a",
    b"\x0a\x7f",
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x0a" + b"\xff" * 11,
    b"\x0b" * 1000,
    b"\x0c",
    b"\x0a\x02\xff\xfe",
    b"\x12\x04\x12\x02\x12\x00"[:-1],
    b"\xff" * 1000,
    b"\x0a\x80" * 500,
    bytes(range(256)),
]


class Caller:
    """Calls methods with bytes and tells how the calls ended."""

    def __init__(self, port):
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()

    def unary(self, method, data):
        try:
            self._channel.unary_unary(SERVICE + method)(data, timeout=20)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def stream(self, method, *requests):
        # A mutated request may well ask for something to wait for.
        call = self._channel.stream_stream(SERVICE + method)(iter(requests), timeout=0.2)
        try:
            for answers, _ in enumerate(call):
                if answers == ENOUGH:
                    call.cancel()
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


@pytest.fixture
def call(server):
    with Caller(server.port) as caller:
        yield caller


@pytest.mark.parametrize("data", NO_MESSAGES, ids=range(len(NO_MESSAGES)))
def test_no_message_at_all(call, data):
    for method in UNARY:
        assert call.unary(method, data) in EXPECTED - {grpc.StatusCode.OK} | (
            # An empty request holds nothing that could be wrong, only fields that are not known.
            {grpc.StatusCode.OK} if method in ("ServerInfo", "Reset", "Checkpoint") else set()
        ), method
    for method in STREAMS:
        assert call.stream(method, data) in EXPECTED, method


def test_methods_that_do_not_exist(call):
    for method in ("", "Nothing", "insertstream", "x" * 5000, "%00", "../Reset"):
        assert call.unary(method, b"") == grpc.StatusCode.UNIMPLEMENTED


def valid_requests():
    """A request of every kind, as it should be: method and bytes."""
    made = numbers(1)
    squeezed = protos.PrioritizedItem(
        key=7,
        table="heap",
        priority=0.5,
        times_sampled=3,
        flat_trajectory=messages.trajectory([[(1, 1, 1, 0)]], squeeze=True),
    )
    columns = [item(5, "items", (1, 0, 2, 0), (1, 2, 1, 0)), squeezed]
    strings = protos.ChunkData(chunk_key=2, sequence_range=protos.SequenceRange(episode_id=1))
    strings.data.tensors.add(dtype=7, tensor_content=b"\x03abc").tensor_shape.dim.add(size=1)
    mutate = protos.MutatePrioritiesRequest(table="prioritized", delete_keys=[1, 2, 3])
    mutate.updates.add(key=5, priority=2.5)
    connection = protos.InitializeConnectionRequest(pid=123, table_name="items")
    return [
        ("InsertStream", insert([made], columns, keep=[1])),
        ("InsertStream", insert([made, strings], [item(6, "prioritized", (2, 0, 1, 0))])),
        ("SampleStream", messages.sample("good", count=3, timeout_ms=50)),
        ("MutatePriorities", mutate),
        ("Reset", protos.ResetRequest(table="prioritized")),
        ("ServerInfo", protos.ServerInfoRequest()),
        ("InitializeConnection", connection),
    ]


def mutated(rng, data):
    """The bytes with a few things done to them that sockets, bugs and enemies do."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + rng.randrange(1, 9)]
        elif kind == 4:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 5:
            start = rng.randrange(len(data) + 1)
            data[at:at] = data[start : start + rng.randrange(1, 40)]
        else:
            data[at : at + 1] = varint(rng.choice([2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1]))
    return bytes(data)


def attack(server, seed, rounds):
    """Sends mutated requests, then reads everything that came of them."""
    rng = random.Random(seed)
    requests = [(method, message.SerializeToString()) for method, message in valid_requests()]
    seen = set()
    before = server.memory()
    server.check()  # Leaves something to sample.
    with Caller(server.port) as call:
        for method, data in requests:
            assert (call.unary if method in UNARY else call.stream)(method, data) in EXPECTED
        for _ in range(rounds):
            method, data = requests[rng.choice([0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6])]
            if method in UNARY:
                code = call.unary(method, mutated(rng, data))
            else:
                # Valid messages around the bad one make the server's state richer.
                many = [mutated(rng, data) if rng.random() < 0.7 else data for _ in range(3)]
                code = call.stream(method, *many)
            assert code in EXPECTED, (code, method)
            seen.add(code)
    assert {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT} <= seen
    for table in ("items", "prioritized", "heap"):
        for _ in range(min(50, server.client.server_info()[table].current_size)):
            try:
                list(server.client.sample(table, 1, timeout_ms=1000))
                server.client.sample_batch(table, 1, timeout_ms=1000)
            except (ReverbError, ValueError):
                pass  # Damaged in one of the ways that other tests look at.
    assert server.memory() < before + 300e6


@pytest.mark.parametrize("seed", range(2))
def test_random_mutations_of_good_requests(server, seed):
    attack(server, seed, 2000)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_random_mutations_of_good_requests(server, seed):
    attack(server, seed, 10_000)
