# SPDX-License-Identifier: Apache-2.0
"""Writes `tf.train.Example` messages and the records of TFRecord files without TensorFlow.

An export needs these parts of the two formats:

    message Example { map<string, Feature> features.feature = 1.1 }
    message Feature { oneof { BytesList = 1; FloatList = 2; Int64List = 3 } }  lists: packed field 1

    record = u64 length | u32 masked CRC32C of the length | data | u32 masked CRC32C of data
"""

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from reverb.core import native

# Field 1 or 2 of a message, and field 1 of a list of numbers: length-delimited.
_FIELD_1, _FIELD_2 = b"\x0a", b"\x12"
# The fields of `Feature`.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"

_VARINT_BITS = 7
# Encoding needs some 100 bytes of memory per number.
_VARINTS_AT_ONCE = 1 << 16


def bytes_features(values: Sequence[bytes], bounds: Sequence[int]) -> Iterator[bytes]:
    """Yields a `Feature` of byte strings for each item.

    `values` are the strings of all items; `bounds` `[N + 1]` are the start of each item in them,
    and the end of the last one.
    """
    for start, end in itertools.pairwise(bounds):
        items = b"".join(_delimited(_FIELD_1, value) for value in values[start:end])
        yield _delimited(_BYTES_LIST, items)


def float_features(values: np.ndarray, bounds: Sequence[int]) -> Iterator[bytes]:
    """Yields a `Feature` of float32 numbers for each item; arguments as in `bytes_features`."""
    packed = np.ascontiguousarray(values, "<f4").tobytes()
    for start, end in itertools.pairwise(bounds):
        yield _delimited(_FLOAT_LIST, _delimited(_FIELD_1, packed[4 * start : 4 * end]))


def int64_features(values: np.ndarray, bounds: Sequence[int]) -> Iterator[bytes]:
    """Yields a `Feature` of int64 numbers, or the bits of uint64; as `bytes_features`."""
    parts = [
        _varints(values[start : start + _VARINTS_AT_ONCE])
        for start in range(0, len(values), _VARINTS_AT_ONCE)
    ]
    packed = b"".join(part for part, _ in parts)
    ends = np.cumsum(np.concatenate([[0], *(sizes for _, sizes in parts)]), dtype=np.int64)
    for start, end in itertools.pairwise(ends[np.asarray(bounds)].tolist()):
        yield _delimited(_INT64_LIST, _delimited(_FIELD_1, packed[start:end]))


def examples(features: Mapping[str, Iterator[bytes]]) -> Iterator[bytes]:
    """Yields an `Example` for each item, from the encoded features of all items by name."""
    prefixes = [_delimited(_FIELD_1, name.encode()) for name in features]
    for of_item in zip(*features.values(), strict=True):
        entries = [
            _delimited(_FIELD_1, prefix + _delimited(_FIELD_2, feature))
            for prefix, feature in zip(prefixes, of_item, strict=True)
        ]
        yield _delimited(_FIELD_1, b"".join(entries))


def record(data: bytes) -> bytes:
    """Returns the data as a record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    crcs = (struct.pack("<I", native.masked_crc32c(part)) for part in (length, data))
    return b"".join((length, next(crcs), data, next(crcs)))


def _delimited(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= _VARINT_BITS
    encoded.append(value)
    return bytes(encoded)


def _varints(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Returns numbers as varints, negative ones in ten bytes; and the number of bytes of each."""
    bits = values.astype(np.int64, copy=False).view(np.uint64)
    width = max(1, -(-int(bits.max()).bit_length() // _VARINT_BITS))
    groups = bits[:, None] >> (np.arange(width, dtype=np.uint64) * np.uint64(_VARINT_BITS))
    # The lowest seven bits are always written, further ones if they or higher ones have bits.
    present = groups != 0
    present[:, 0] = True
    encoded = (groups & np.uint64(0x7F)).astype(np.uint8)
    encoded[:, :-1] |= present[:, 1:].astype(np.uint8) << np.uint8(_VARINT_BITS)
    return encoded[present].tobytes(), np.count_nonzero(present, axis=1)
