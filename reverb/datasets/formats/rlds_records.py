# SPDX-License-Identifier: Apache-2.0
"""Records of TensorFlow, and the message `tf.train.Example` in each.

A record is read when its length has been checked. The values of a field are counted before they are
decoded: a byte of the message may be a number of eight.
"""

import pathlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from reverb import errors
from reverb._checks.plain_files import open_file
from reverb.core import native
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.limits import MAX_FIELDS, Limits

__all__ = ["Example", "records"]

_HEAD = struct.Struct("<QI")
# Encoded numbers that are decoded at a time.
_BLOCK_BYTES = 1 << 18
_MAX_NUMBER_BYTES = 10
# The field of a `Feature` with each kind of list.
_TEXTS, _FLOATS, _INTEGERS = 1, 2, 3


def records(path: pathlib.Path, place: str, number: int, limits: Limits) -> Iterator[bytes]:
    """Yields the records of a file.

    Args:
      path: The file.
      place: The dataset, for errors.
      number: Number of the episode in the first record.
      limits: Bounds a record.

    Raises:
      InvalidArgumentError: If a record is too large.
      DataLossError: If one is damaged.
    """
    with reading(str(path), (OSError,)), open_file(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        at = 0
        while at < size:
            where = f"{place}: episode {number} cannot be read: {path}"
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size or _HEAD.unpack(head)[1] != native.masked_crc32c(head[:8]):
                raise errors.DataLossError(f"{where}: the head of the record is damaged")
            length = _HEAD.unpack(head)[0]
            at += _HEAD.size + length + 4
            if at > size:
                raise errors.DataLossError(f"{where}: the file ends in the record")
            limits.check(where, "the record", length)
            data = file.read(length)
            if file.read(4) != struct.pack("<I", native.masked_crc32c(data)):
                raise errors.DataLossError(f"{where}: the record is damaged")
            yield data
            number += 1


class Example:
    """A message `tf.train.Example`: a dict of lists of numbers or of texts.

    Raises:
      ValueError: If it is damaged.
    """

    def __init__(self, data: bytes, where: str, limits: Limits) -> None:
        self._where = where
        self._limits = limits
        self._num_bytes = 0
        self._fields: dict[str, memoryview] = {}
        for features in _parts(memoryview(data), 1):
            for entry in _parts(features, 1):
                key = b"".join(bytes(it) for it in _parts(entry, 1)).decode()
                for value in _parts(entry, 2):
                    self._fields[key] = value
                if len(self._fields) > 4 * MAX_FIELDS:
                    raise ValueError(f"it has more than {4 * MAX_FIELDS} fields")

    def take(self, where: str, num_bytes: int) -> None:
        """Counts memory for values.

        Raises:
          InvalidArgumentError: If the episode is too large.
        """
        self._num_bytes += num_bytes
        self._limits.check(where, "the episode", self._num_bytes)

    def numbers(self, key: str, dtype: np.dtype[Any], where: str) -> np.ndarray:
        """The numbers of a field, `[N]`."""
        is_float = dtype.kind == "f"
        kind = _FLOATS if is_float else _INTEGERS
        # Numbers are together, or each is a part of its own.
        parts = [
            part for values in _parts(self._field(key, where), kind) for part in _parts(values, 1)
        ]
        data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        if not is_float:
            self.take(where, _count(data) * dtype.itemsize)
            return _integers(data, dtype)
        self.take(where, len(data) // 4 * dtype.itemsize)
        return np.frombuffer(data, "<f4").astype(dtype)

    def texts(self, key: str, where: str) -> list[memoryview]:
        """The texts of a field."""
        return [
            part for values in _parts(self._field(key, where), _TEXTS) for part in _parts(values, 1)
        ]

    def _field(self, key: str, where: str) -> memoryview:
        if key not in self._fields:
            raise errors.DataLossError(f"{where}: is missing in the record")
        return self._fields[key]


def _parts(data: memoryview, wanted: int) -> Iterator[memoryview]:
    """The parts of a message with a field number."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        start = at
        if wire == 0:
            _, at = _varint(data, at)
        elif wire == 1:
            at += 8
        elif wire == 2:
            size, start = _varint(data, at)
            at = start + size
        elif wire == 5:
            at += 4
        else:
            raise ValueError(f"a message has a part of the kind {wire}")
        if at > len(data):
            raise ValueError("a message ends too early")
        if tag >> 3 == wanted:
            yield data[start:at]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 7 * _MAX_NUMBER_BYTES:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number of a message is damaged")


def _count(data: memoryview) -> int:
    """The number of numbers in a list."""
    encoded = np.frombuffer(data, np.uint8)
    return sum(
        int(np.count_nonzero(encoded[at : at + _BLOCK_BYTES] < 128))
        for at in range(0, len(encoded), _BLOCK_BYTES)
    )


def _integers(data: memoryview, dtype: np.dtype[Any]) -> np.ndarray:
    """Decodes a list of integers of 64 bits, seven of them in each byte."""
    encoded = np.frombuffer(data, np.uint8)
    found = np.empty(_count(data), dtype)
    at = done = 0
    while at < len(encoded):
        block = encoded[at : at + _BLOCK_BYTES]
        ends = np.flatnonzero(block < 128) + 1
        if not len(ends):
            raise ValueError("a number of a message is damaged")
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        lengths = ends - starts
        if lengths.max() > _MAX_NUMBER_BYTES:
            raise ValueError("a number of a message is damaged")
        values = (block[starts] & 127).astype(np.uint64)
        for index in range(1, int(lengths.max())):
            longer = np.flatnonzero(lengths > index)
            part = (block[starts[longer] + index] & 127).astype(np.uint64)
            values[longer] |= part << np.uint64(7 * index)
        found[done : done + len(values)] = values.view(np.int64).astype(dtype)
        done += len(values)
        at += int(ends[-1])
    return found
