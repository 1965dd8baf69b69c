# SPDX-License-Identifier: Apache-2.0
"""Tensors in chunks: snappy, strings and differences, decoded by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reverb.cc import schema_pb2
from reverb.core import protos
from support.wire import messages

# By their numbers in the enum `tensorflow.DataType`.
_DTYPES = {number: np.dtype(name) for name, number in messages.DTYPES.items()}


def chunk(key: int, columns: Sequence[Any], *, episode: int = 1, start: int = 0) -> Any:
    """Returns a chunk of tensors `[T, ...]`."""
    made = schema_pb2.ChunkData(chunk_key=key, data_tensors_len=len(columns))
    made.sequence_range.episode_id = episode
    made.sequence_range.start = start
    made.sequence_range.end = start + len(columns[0]) - 1
    made.data.tensors.extend(map(tensor, columns))
    return made


def tensor(array: Any) -> Any:
    """Returns the message of an array; object arrays hold bytes."""
    array = np.asarray(array)
    if array.dtype != object:
        return messages.tensor(array)
    texts = list(array.reshape(-1))
    made = protos.TensorProto(dtype=messages.DT_STRING)
    made.tensor_content = b"".join(messages.varint(len(text)) for text in texts) + b"".join(texts)
    for size in array.shape:
        made.tensor_shape.dim.add(size=size)
    return made


def decode(chunk: Any, index: int) -> np.ndarray:
    """Returns tensor `index` of a chunk, `[T, ...]`; strings are an object array of bytes."""
    proto = chunk.data.tensors[index]
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.dtype == messages.DT_STRING:
        return _strings(proto.tensor_content, shape)
    dtype = _DTYPES[proto.dtype]
    content = unsnappy(proto.tensor_content)
    assert len(content) == dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    array = np.frombuffer(content, dtype).reshape(shape)
    if chunk.delta_encoded and len(shape) >= 2 and dtype.kind in "iu":
        unsigned = array.view(f"u{dtype.itemsize}")
        array = np.add.accumulate(unsigned, 0, dtype=unsigned.dtype).view(dtype)
    return array


def unsnappy(block: bytes) -> bytes:
    """Returns what a raw snappy block holds."""
    size, at = _read_varint(block, 0)
    out = bytearray()
    while at < len(block):
        tag, at = block[at], at + 1
        if tag & 3 == 0:
            length, extra = tag >> 2, 0
            if length >= 60:
                extra = length - 59
                length = int.from_bytes(block[at : at + extra], "little")
            at += extra
            out += block[at : at + length + 1]
            at += length + 1
            continue
        if tag & 3 == 1:
            length, offset = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | block[at]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length, offset = (tag >> 2) + 1, int.from_bytes(block[at : at + width], "little")
            at += width
        assert 0 < offset <= len(out)
        for _ in range(length):
            out.append(out[-offset])
    assert len(out) == size
    return bytes(out)


def _strings(content: bytes, shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(int(np.prod(shape, dtype=np.int64)), object)
    lengths, at = [], 0
    for _ in array:
        length, at = _read_varint(content, at)
        lengths.append(length)
    for i, length in enumerate(lengths):
        array[i], at = content[at : at + length], at + length
    assert at == len(content)
    return array.reshape(shape)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number and where it ends."""
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
