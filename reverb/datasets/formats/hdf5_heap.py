# SPDX-License-Identifier: Apache-2.0
"""Rows of any length in a file of HDF5: encoded images.

A row refers to an object in a heap of the file. The library may search a damaged heap for ever, so
that heaps are read here, each once from its begin to its end.
"""

import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import BinaryIO

__all__ = ["REFERENCE", "objects_of"]

# Length of the row, address of the heap, and number of the object in it.
REFERENCE = struct.Struct("<IQI")
_HEAP = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HH4xQ")


def objects_of(file: BinaryIO, references: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Returns the place of each row in the file, and its size.

    Raises:
      ValueError: If a heap is damaged, or has no such object.
    """
    wanted: defaultdict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for _, heap, number in references:
        wanted[heap][number] = (0, -1)
    file_bytes = file.seek(0, 2)
    for heap, objects in wanted.items():
        file.seek(heap)
        magic, version, size = _HEAP.unpack(_exactly(file, _HEAP.size))
        if magic != b"GCOL" or version != 1 or heap + size > file_bytes:
            raise ValueError(f"there is no heap at byte {heap:,}")
        at = heap + _HEAP.size
        while at + _OBJECT.size <= heap + size:
            file.seek(at)
            number, _, length = _OBJECT.unpack(_exactly(file, _OBJECT.size))
            if not number:  # The rest is free.
                break
            at += _OBJECT.size
            if at + length > heap + size:
                raise ValueError(f"object {number} ends after its heap at byte {heap:,}")
            if number in objects:
                objects[number] = (at, length)
            at += -(-length // 8) * 8
    places = []
    for length, heap, number in references:
        at, size = wanted[heap][number]
        if length > size:
            raise ValueError(f"the heap at byte {heap:,} has no object {number} of {length} bytes")
        places.append((at, length))
    return places


def _exactly(file: BinaryIO, num_bytes: int) -> bytes:
    data = file.read(num_bytes)
    if len(data) != num_bytes:
        raise ValueError("the file ends in a heap")
    return data
