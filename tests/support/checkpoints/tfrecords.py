# SPDX-License-Identifier: Apache-2.0
"""The framing of checkpoint files: checked records, one after another, zipped as a whole.

Written from the description of the format alone, so that it can tell when the core is wrong.
"""

from __future__ import annotations

import dataclasses
import pathlib
import struct
import zlib
from collections.abc import Iterable

_CASTAGNOLI = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_WORD = 0xFFFFFFFF

# Bytes of a record besides its data: length, checksum of the length, checksum of the data.
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


class BadRecordError(Exception):
    """A file that is not what it should be."""


def _make_table() -> list[int]:
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (_CASTAGNOLI if remainder & 1 else 0)
        table.append(remainder)
    return table


_TABLE = _make_table()


def crc32c(data: bytes) -> int:
    """Returns the checksum of Castagnoli."""
    remainder = _WORD
    for byte in data:
        remainder = remainder >> 8 ^ _TABLE[(remainder ^ byte) & 0xFF]
    return remainder ^ _WORD


def masked(checksum: int) -> int:
    """Returns a checksum as it stands in files."""
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & _WORD


def encode(data: bytes) -> bytes:
    """Returns one record."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        [
            _HEADER.pack(len(data), masked(crc32c(length))),
            data,
            _FOOTER.pack(masked(crc32c(data))),
        ]
    )


@dataclasses.dataclass
class Record:
    """A record in an unzipped file.

    Attributes:
      start: Where it begins, in bytes.
      end: Where the next one begins.
      data: Content of the record.
    """

    start: int
    end: int
    data: bytes


def decode(stream: bytes, *, verify: bool = True) -> list[Record]:
    """Returns the records of an unzipped file.

    Args:
      stream: All of the file.
      verify: Computes the checksums too, some seconds for 10 MB.

    Raises:
      BadRecordError: If a checksum is wrong, or if the last record is cut.
    """
    records = []
    at = 0
    while at < len(stream):
        if len(stream) - at < _HEADER.size:
            raise BadRecordError(f"cut header at {at}")
        length, length_checksum = _HEADER.unpack_from(stream, at)
        if length_checksum != masked(crc32c(stream[at : at + 8])):
            raise BadRecordError(f"wrong length at {at}")
        end = at + _HEADER.size + length + _FOOTER.size
        if end > len(stream):
            raise BadRecordError(f"cut record at {at}")
        data = stream[at + _HEADER.size : end - _FOOTER.size]
        if verify and _FOOTER.unpack_from(stream, end - _FOOTER.size)[0] != masked(crc32c(data)):
            raise BadRecordError(f"wrong data at {at}")
        records.append(Record(at, end, data))
        at = end
    return records


def unzip(data: bytes) -> bytes:
    """Returns what a zlib stream holds, all of which must be there.

    Raises:
      BadRecordError: If it is no such stream, if it is cut, or if something follows.
    """
    unzipper = zlib.decompressobj()
    try:
        stream = unzipper.decompress(data)
    except zlib.error as error:
        raise BadRecordError(str(error)) from error
    if not unzipper.eof or unzipper.unused_data:
        raise BadRecordError("the stream is cut, or something follows it")
    return stream


def read_file(path: pathlib.Path, *, compressed: bool = True, verify: bool = True) -> list[bytes]:
    """Returns what the records of a file hold."""
    data = path.read_bytes()
    stream = unzip(data) if compressed else data
    return [record.data for record in decode(stream, verify=verify)]


def write_file(path: pathlib.Path, records: Iterable[bytes], *, compressed: bool = True) -> None:
    """Writes a file of records."""
    stream = b"".join(map(encode, records))
    path.write_bytes(zlib.compress(stream) if compressed else stream)
