# SPDX-License-Identifier: Apache-2.0
"""Chunks that are damaged or lie.

A server stores chunks without looking into their contents, so it is the reader who finds out: with
an error for that item, and none of the memory that the chunk claims.
"""

import contextlib

import grpc
import numpy as np
import pytest

from reverb.core import protos
from reverb.errors import (
    DataLossError,
    InvalidArgumentError,
    ResourceExhaustedError,
    ReverbError,
)
from support.programs import resident_bytes
from support.wire.messages import insert, item, numbers, snappy, varint

GIGABYTE = 2**30
MEMORY_LIMIT = 200_000_000

INT32, UINT8, STRING = 3, 4, 7


def tensor(shape, content, dtype=INT32, **fields):
    """A tensor of any shape with any content."""
    made = protos.TensorProto(dtype=dtype, tensor_content=content, **fields)
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


def chunk(*tensors, key=1, steps=3, **fields):
    return protos.ChunkData(
        chunk_key=key,
        sequence_range=protos.SequenceRange(episode_id=1, start=0, end=steps - 1),
        data=protos.ChunkData.Data(tensors=tensors),
        data_tensors_len=len(tensors),
        **fields,
    )


def offer(wire, made, *slices):
    """Offers a chunk with an item over it; returns whether the server took them."""
    stream = wire.insert_stream()
    stream.send(insert([made], [item(5, "items", *slices or [(1, 0, 3, 0)])]))
    stream.half_close()
    taken = [key for answer in stream.receive_all() for key in answer.keys]
    return taken == [5]


def readings(client):
    """Every way to read an item."""
    return [
        lambda: client.sample_batch("items", 1, timeout_ms=5000),
        lambda: client.sample_batch("items", 3, timeout_ms=5000),
        lambda: list(client.sample("items", 1, timeout_ms=5000)),
        lambda: list(client.sample("items", 3, timeout_ms=5000, emit_timesteps=False)),
    ]


def check_unreadable(server, wire, made, *slices):
    """The chunk is refused, or kept and then refused by readers; neither side takes much memory."""
    before = server.memory(), resident_bytes()
    taken = offer(wire, made, *slices)
    assert server.client.server_info()["items"].current_size == taken
    if taken:
        for read in readings(server.client):
            with pytest.raises(DataLossError):
                read()
    assert server.memory() < before[0] + MEMORY_LIMIT
    assert resident_bytes() < before[1] + MEMORY_LIMIT
    return taken


BLOCK = snappy(np.arange(3, dtype=np.int32).tobytes())


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(varint(GIGABYTE) + BLOCK[1:], id="length of a gigabyte"),
        pytest.param(varint(2**32 - 1) + b"\xff" * 50, id="length of 4 gigabytes"),
        pytest.param(varint(2**63) + BLOCK[1:], id="length of 63 bits"),
        pytest.param(b"\xff" * 20, id="length without an end"),
        pytest.param(varint(12) + b"\x01\x01", id="copy from before the start"),
        pytest.param(varint(12) + b"\x00a" + b"\xfe\xff\xff", id="copy from far before the start"),
        pytest.param(varint(12) + b"\xfc\xff\xff\xff\xff", id="literal of 4 gigabytes"),
        pytest.param(b"\x00", id="nothing at all"),
        pytest.param(b"", id="not even a length"),
    ],
)
def test_lying_snappy(server, wire, block):
    check_unreadable(server, wire, chunk(tensor([3], block)))


@pytest.mark.parametrize(
    "shape",
    [
        [GIGABYTE],
        [3, GIGABYTE],
        [3, 2**62],
        [2**31, 2**31],
        [2**62, 2**62],
        [3] + [2**16] * 10,
        [3, -1],
        [3, -(2**63)],
        [-1],
        [2],
        [4],
        [3, 2],
        [0],
        [],
    ],
    ids=str,
)
def test_shapes_that_lie(server, wire, shape):
    steps = min(3, max(0, shape[0])) if shape else 1
    check_unreadable(server, wire, chunk(tensor(shape, BLOCK)), (1, 0, max(steps, 1), 0))


def test_shapes_of_very_many_dimensions(server, wire):
    offer(wire, chunk(tensor([3] + [1] * 100_000, BLOCK)))
    for read in readings(server.client):
        with pytest.raises(InvalidArgumentError, match="number of dimensions") as raised:
            read()
        assert len(str(raised.value)) < 400


@pytest.mark.parametrize("shape", [[3, 0, 2**62], [2**62, 0], [3, 2**40, 0, 2**40]], ids=str)
def test_shapes_without_elements_that_numpy_has_not(server, wire, shape):
    assert offer(wire, chunk(tensor(shape, b"\0")), (1, 0, 3, 0))
    for read in [*readings(server.client), lambda: list(server.client.scan("items"))]:
        with contextlib.suppress(ReverbError):
            read()


@pytest.mark.parametrize("length", [0, -1])
def test_slices_without_steps_are_refused(server, wire, length):
    stream = wire.insert_stream()
    stream.send(insert([chunk(tensor([3], BLOCK))], [item(5, "items", (1, 0, length, 0))]))
    code, text = stream.status()
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "length" in text
    assert str(length) in text
    assert server.client.server_info()["items"].current_size == 0


def test_very_many_steps_of_nothing(server, wire):
    steps = 2**31 - 1
    before = resident_bytes()
    assert offer(wire, chunk(tensor([steps, 0], b"\0"), steps=steps), (1, 0, steps, 0))
    assert server.client.sample_batch("items", 1).data[0].shape == (1, steps, 0)
    with pytest.raises(ResourceExhaustedError, match="2147483647 steps without any data"):
        next(server.client.sample("items"))
    assert resident_bytes() < before + MEMORY_LIMIT


def test_many_samples_of_many_zeros(server, wire):
    # 4 MB of zeros in a few hundred bytes would be 4 GB in a batch of 1000.
    zeros = varint(4_000_000) + b"\x00\x00" + b"\xfe\x01\x00" * 62_499 + b"\xfa\x01\x00"
    assert offer(wire, chunk(tensor([4_000_000], zeros, UINT8)), (1, 0, 1_000_000, 0))
    batch = server.client.sample_batch("items", 10)
    assert batch.data[0].shape == (10, 1_000_000)
    assert not batch.data[0].any()


@pytest.mark.parametrize("dtype", [0, 20, 21, 26, 99, 101, 2**31 - 1, -1])
def test_dtypes_that_do_not_exist(server, wire, dtype):
    taken = check_unreadable(server, wire, chunk(tensor([3], BLOCK, dtype)))
    assert not taken


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        b"\x01\x01\x01",
        b"\x01\x01\x01ab",
        b"\x01\x01\x01abcd",
        b"\xff\xff\xff\xff\x0f" * 3,
        b"\x01\x01" + varint(2**63) + b"abc",
        b"\xff" * 30,
    ],
)
def test_damaged_strings(server, wire, content):
    check_unreadable(server, wire, chunk(tensor([3], content, STRING)))


@pytest.mark.parametrize("shape", [[3, GIGABYTE], [3, 2**62], [2**62, 2**62], [3, 2]])
def test_strings_of_shapes_that_lie(server, wire, shape):
    check_unreadable(server, wire, chunk(tensor(shape, b"\x01\x01\x01abc", STRING)))


def test_a_payload_that_is_no_message(server, wire):
    for payload in (b"\xff" * 40, b"\x0a", b"\x0a\xff\xff\xff\x7f", b"\x0b\x0c", b"abcdefgh"):
        made = protos.ChunkData(chunk_key=1).SerializeToString()
        made += b"\x2a" + varint(len(payload)) + payload
        request = b"\x0a" + varint(len(made)) + made
        request += insert([], [item(5, "items", (1, 0, 1, 0))]).SerializeToString()
        stream = wire.insert_stream()
        stream.send(request)
        stream.half_close()
        stream.receive_all()
        assert server.client.server_info()["items"].current_size == 0


def test_the_good_neighbours_of_a_damaged_item_are_read(server, wire):
    stream = wire.insert_stream()
    damaged = chunk(tensor([3], BLOCK[:5]), key=2)
    for key in range(20):
        stream.send(insert([numbers(1)], [item(key, "items", (1, 0, 3, 0))]))
    stream.send(insert([damaged], [item(99, "items", (2, 0, 3, 0))]))
    stream.half_close()
    stream.receive_all()
    good = bad = 0
    for _ in range(500):
        try:
            np.testing.assert_array_equal(
                server.client.sample_batch("items", 1).data, [[[1, 2, 3]]]
            )
            good += 1
        except DataLossError:
            bad += 1
    assert good > 300
    # A server that checks contents has refused the damaged one.
    assert bad > 0 or server.client.server_info()["items"].current_size == 20
