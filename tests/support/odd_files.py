# SPDX-License-Identifier: Apache-2.0
"""Objects in the place of a file: pipes, devices, bombs, and files that are too large."""

from __future__ import annotations

import os
import pathlib
import socket
import struct
import zlib
from collections.abc import Callable

from support.checkpoints import tfrecords

MIB = 2**20
_HUGE_BYTES = 400 * MIB


def _pipe(path: pathlib.Path, _: bytes) -> None:
    os.mkfifo(path)


def _device(path: pathlib.Path, _: bytes) -> None:
    path.symlink_to("/dev/zero")


def _directory(path: pathlib.Path, _: bytes) -> None:
    path.mkdir()


def _socket(path: pathlib.Path, _: bytes) -> None:
    # A path of a socket has at most some hundred characters.
    short = pathlib.Path(f"/tmp/odd-{os.getpid()}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short))
    short.rename(path)


def _huge(path: pathlib.Path, good: bytes) -> None:
    path.write_bytes(good)
    os.truncate(path, _HUGE_BYTES)


def _truncated(path: pathlib.Path, good: bytes) -> None:
    path.write_bytes(good[: len(good) // 2])


def _bomb(path: pathlib.Path, _: bytes) -> None:
    path.write_bytes(bomb(4 * 2**30))


ODD: dict[str, Callable[[pathlib.Path, bytes], None]] = {
    "pipe": _pipe,
    "device": _device,
    "directory": _directory,
    "socket": _socket,
    "huge": _huge,
    "truncated": _truncated,
    "bomb": _bomb,
}
"""A function that puts it there, given the path, which is free, and the earlier content."""


def bomb(length: int, num_bytes: int = 512 * MIB) -> bytes:
    """Returns a zipped file of one record that claims a length, and zeros behind its head."""
    packer = zlib.compressobj(1)
    parts = [packer.compress(record_head(length))]
    parts += [packer.compress(bytes(MIB)) for _ in range(num_bytes // MIB)]
    return b"".join([*parts, packer.flush()])


def record_head(length: int) -> bytes:
    """Returns the head of a record of some length, with a good checksum."""
    head = struct.pack("<Q", length)
    return head + struct.pack("<I", tfrecords.masked(tfrecords.crc32c(head)))


def replace(path: pathlib.Path, kind: str) -> None:
    """Puts something odd in the place of a file."""
    good = path.read_bytes()
    path.unlink()
    ODD[kind](path, good)
