# SPDX-License-Identifier: Apache-2.0
"""The floor of a store: a loop of `pread` over its data files, and the page cache made empty.

The loop has processes instead of threads, because threads of Python would wait for each other.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import itertools
import mmap
import multiprocessing
import os
import pathlib
import time
from collections.abc import Iterator, Sequence

import numpy as np

from reverb.core import native

# The head of a data file.
_HEAD_BYTES = 4096
_PAGE = mmap.PAGESIZE
# What each process of a loop reads: files, offsets and sums of payloads.
_places: list[tuple[int, int]] = []
_sums: list[int] = []


class ReadLoop:
    """Reads payloads in random places, in several processes at once."""

    def __init__(self, pool: concurrent.futures.Executor, workers: int) -> None:
        self._pool = pool
        self._workers = workers
        self._seeds = itertools.count()

    def rate(self, reads: int, is_checked: bool = True) -> float:
        """Reads a second; with `is_checked` each is compared with the sum of its place."""
        calls = [
            self._pool.submit(_read, reads // self._workers, next(self._seeds), is_checked)
            for _ in range(self._workers)
        ]
        begun, ended = zip(*(call.result() for call in calls), strict=True)
        return reads // self._workers * self._workers / (max(ended) - min(begun))


@contextlib.contextmanager
def open_loop(files: Sequence[pathlib.Path], size: int, workers: int) -> Iterator[ReadLoop]:
    """Starts a loop over all places of `size` bytes in these files."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        workers, context, _open_places, ([str(path) for path in files], size)
    ) as pool:
        yield ReadLoop(pool, workers)


def _open_places(paths: Sequence[str], size: int) -> None:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        last = os.fstat(file).st_size - size
        _places.extend((file, offset) for offset in range(_HEAD_BYTES, last + 1, size))
    _sums.extend(native.masked_crc32c(os.pread(file, size, at)) for file, at in _places)
    # One size for all of them.
    globals()["_size"] = size


def _read(count: int, seed: int, is_checked: bool) -> tuple[float, float]:
    size: int = globals()["_size"]
    picked = np.random.default_rng(seed).integers(0, len(_places), count).tolist()
    begun = time.monotonic()
    for at in picked:
        read = os.pread(_places[at][0], size, _places[at][1])
        if is_checked and native.masked_crc32c(read) != _sums[at]:
            raise ValueError("a payload has changed")
    return begun, time.monotonic()


def forget_pages(files: Sequence[pathlib.Path]) -> None:
    """Drops the files from the page cache."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        # Pages that are not on the disk yet would stay.
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def cached_part(files: Sequence[pathlib.Path]) -> float:
    """The part of the files that is in the page cache, by `mincore`."""
    libc = ctypes.CDLL(None, use_errno=True)
    cached = pages = 0
    for path in files:
        # A private mapping, which ctypes can take the address of; no page of it is touched.
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
            found = (ctypes.c_ubyte * -(-len(view) // _PAGE))()
            start = ctypes.c_char.from_buffer(view)
            address, length = ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(view))
            if libc.mincore(address, length, found):
                raise OSError(ctypes.get_errno(), "mincore")
            del start
            cached += int((np.frombuffer(bytes(found), np.uint8) & 1).sum())
            pages += len(found)
    return cached / max(pages, 1)


def read_from_disk(pid: int) -> int:
    """Bytes that the block device has read for a process."""
    fields = pathlib.Path(f"/proc/{pid}/io").read_text().split()
    return int(fields[fields.index("read_bytes:") + 1])
