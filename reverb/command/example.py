# SPDX-License-Identifier: Apache-2.0
"""`tf.train.Example` messages and the frames of TFRecord files, written without TensorFlow.

The parts of the two formats that an export needs:

    message Example { map<string, Feature> features.feature = 1.1 }
    message Feature { oneof { BytesList = 1; FloatList = 2; Int64List = 3 } }  lists: packed field 1

    frame = u64 length | u32 masked CRC32C of the length | data | u32 masked CRC32C of data
"""

import struct

import numpy as np

from reverb.core import native

# Field 1 of a message, and of a list of numbers: length-delimited.
_FIELD_1 = b"\x0a"
_FIELD_2 = b"\x12"
# The fields of `Feature`.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"

_VARINT_BITS = 7
_MAX_VARINT_BYTES = 10
# Encoding takes some 100 bytes for each number on the way.
_VARINTS_AT_ONCE = 1 << 16


def bytes_feature(values: list[bytes]) -> bytes:
    """A `Feature` of byte strings."""
    return _delimited(_BYTES_LIST, b"".join(_delimited(_FIELD_1, value) for value in values))


def float_feature(values: np.ndarray) -> bytes:
    """A `Feature` of float32 numbers."""
    packed = np.ascontiguousarray(values, "<f4").tobytes()
    return _delimited(_FLOAT_LIST, _delimited(_FIELD_1, packed))


def int64_feature(values: np.ndarray) -> bytes:
    """A `Feature` of int64 numbers; of uint64, the bits."""
    return _delimited(_INT64_LIST, _delimited(_FIELD_1, _varints(values.ravel())))


def example(features: dict[str, bytes]) -> bytes:
    """An `Example` of encoded features by name."""
    entries = []
    for name, feature in features.items():
        entry = _delimited(_FIELD_1, name.encode()) + _delimited(_FIELD_2, feature)
        entries.append(_delimited(_FIELD_1, entry))
    return _delimited(_FIELD_1, b"".join(entries))


def frame(data: bytes) -> bytes:
    """A record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    crc_of_length = struct.pack("<I", native.masked_crc32c(length))
    return b"".join((length, crc_of_length, data, struct.pack("<I", native.masked_crc32c(data))))


def _delimited(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= _VARINT_BITS
    encoded.append(value)
    return bytes(encoded)


def _varints(values: np.ndarray) -> bytes:
    """Numbers as varints, those below zero in their ten bytes."""
    parts = []
    for start in range(0, len(values), _VARINTS_AT_ONCE):
        part = values[start : start + _VARINTS_AT_ONCE]
        bits = part.astype(np.int64, copy=False).view(np.uint64)
        width = _num_bytes(int(bits.max()))
        shifts = np.arange(width, dtype=np.uint64) * np.uint64(_VARINT_BITS)
        groups = bits[:, None] >> shifts
        # A group is there if it or one behind it has bits, and the first one always.
        present = groups != 0
        present[:, 0] = True
        encoded = (groups & np.uint64(0x7F)).astype(np.uint8)
        encoded[:, :-1] |= present[:, 1:].astype(np.uint8) << np.uint8(_VARINT_BITS)
        parts.append(encoded[present].tobytes())
    return b"".join(parts)


def _num_bytes(value: int) -> int:
    return max(1, -(-value.bit_length() // _VARINT_BITS))
