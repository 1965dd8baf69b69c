# SPDX-License-Identifier: Apache-2.0
"""Protobuf messages made by hand, independently of the writers and readers under test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from reverb.core import protos

EPISODE = 77

# Numbers of the enum `tensorflow.DataType`.
DTYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "complex64": 8,
    "int64": 9,
    "bool": 10,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}
DT_STRING = 7

# chunk key, offset, length, index of the tensor in the chunk
Slice = tuple[int, int, int, int]


def snappy(data: bytes) -> bytes:
    """Returns a raw snappy block without any compression: the length, then literals."""
    parts = [varint(len(data))]
    for start in range(0, len(data), 2**16):
        piece = data[start : start + 2**16]
        # Tag 61 says that the length minus one follows in two bytes.
        parts += [bytes([61 << 2]), (len(piece) - 1).to_bytes(2, "little"), piece]
    return b"".join(parts)


def varint(value: int) -> bytes:
    """Returns a base-128 number, the lowest seven bits first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def tensor(array: Any) -> Any:
    """Returns the `TensorProto` of an array as it stands in a chunk."""
    array = np.asarray(array)
    proto = protos.TensorProto(
        dtype=DTYPES[array.dtype.name], tensor_content=snappy(array.tobytes())
    )
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def chunk(key: int, *arrays: Any, episode: int = EPISODE) -> Any:
    """Returns a chunk of tensors `[T, ...]`."""
    steps = len(arrays[0])
    return protos.ChunkData(
        chunk_key=key,
        sequence_range=protos.SequenceRange(episode_id=episode, start=0, end=steps - 1),
        data=protos.ChunkData.Data(tensors=[tensor(array) for array in arrays]),
        data_tensors_len=len(arrays),
    )


def essential(chunk: Any) -> Any:
    """Returns a chunk without the size that only the peer uses; a server may drop it."""
    copy = protos.ChunkData()
    copy.CopyFrom(chunk)
    copy.ClearField("data_uncompressed_size")
    return copy


def numbers(key: int, count: int = 3, first: int = 1) -> Any:
    """Returns a chunk of one int32 column that counts upwards."""
    return chunk(key, np.arange(first, first + count, dtype=np.int32))


def trajectory(columns: Iterable[Sequence[Slice]], squeeze: bool = False) -> Any:
    """Returns a trajectory of columns, each a list of slices."""
    flat = protos.FlatTrajectory()
    for slices in columns:
        column = flat.columns.add(squeeze=squeeze)
        for key, offset, length, index in slices:
            column.chunk_slices.add(chunk_key=key, offset=offset, length=length, index=index)
    return flat


def item(key: int, table: str, *slices: Slice, priority: float = 1.0, **fields: Any) -> Any:
    """Returns an item of one column."""
    return protos.PrioritizedItem(
        key=key,
        table=table,
        priority=priority,
        flat_trajectory=trajectory([slices]),
        **fields,
    )


def insert(chunks: Sequence[Any] = (), items: Sequence[Any] = (), keep: Sequence[int] = ()) -> Any:
    """Returns a message of an insert stream."""
    return protos.InsertStreamRequest(chunks=chunks, items=items, keep_chunk_keys=keep)


def sample(table: str, count: int = 1, timeout_ms: int | None = None) -> Any:
    """Returns a message of a sample stream."""
    request = protos.SampleStreamRequest(table=table, num_samples=count)
    if timeout_ms is not None:
        request.rate_limiter_timeout.milliseconds = timeout_ms
        request.rate_limiter_timeout.SetInParent()
    return request


def entry(info: Any | None, chunks: Sequence[Any] = (), *, end: bool = True) -> Any:
    """Returns one entry of a sample response."""
    made = protos.SampleStreamResponse.SampleEntry(data=chunks, end_of_sequence=end)
    if info is not None:
        made.info.CopyFrom(info)
    return made


def sample_info(sampled: Any, table_size: int = 1) -> Any:
    """Returns what a server says about a sampled item."""
    info = protos.SampleInfo(item=sampled, probability=1.0, table_size=table_size)
    info.item.times_sampled = 1
    return info


def response(*entries: Any) -> Any:
    """Returns a message that a server sends on a sample stream."""
    return protos.SampleStreamResponse(entries=entries)
