# SPDX-License-Identifier: Apache-2.0
"""What a server with a store takes in memory: `RssAnon` of its process, seen from outside."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from servers import TableSpec
from store_tables import NoiseServer, Options, Row, check, fill, frame, frames, open_noise

_MIB = 2**20
_STACK = 5
_SMALL = "64MiB"
_STREAMS = 500
_ROW_BYTES = 1_000_000
# Just larger than what stays in memory whole.
_CHUNK_BYTES = 1_200


class RssAnon:
    """The most that a process takes, looked at each 100 ms."""

    def __init__(self, pid: int) -> None:
        self._status = pathlib.Path(f"/proc/{pid}/status")
        self.most = self.now()
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> RssAnon:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stops.set()
        self._thread.join()

    def now(self) -> int:
        """What it takes now, in bytes."""
        return int(self._status.read_text().partition("RssAnon:")[2].split()[0]) * 1024

    def _watch(self) -> None:
        while not self._stops.wait(0.1):
            with contextlib.suppress(OSError):
                self.most = max(self.most, self.now())


def rows(options: Options) -> Iterator[Row]:
    """Transitions, chunks, large batches and items, and streams that do not read."""
    yield from _transitions(options)
    yield from _chunks(options)
    yield from _readers(options)
    yield from _here(options)
    yield from _large_items(options)


def _transitions(options: Options) -> Iterator[Row]:
    items = options.size(100_000)
    table = TableSpec(max_size=items)
    memory = options.memory or f"{200 * items // 100_000}MiB"
    with (
        open_noise("remote", options, table, memory=memory) as server,
        RssAnon(server.server.pid) as watched,
    ):
        begin = watched.now()
        for name, first in (("filled", 0), ("items twice as many", items)):
            write_stacks(server.client, range(first, first + items))
            compared = sum(
                check(server.client.sample_batch("table", 32).data) for _ in range(items // 1_000)
            )
            status = server.client.status()
            store, held = status.store, server.client.server_info()["table"].current_size
            what = f"{items:,} transitions, {name}"
            # 280 MiB beside 200, 1,024 beside 900.
            limit = status.memory.limit / _MIB
            limit += max(80, 0.138 * limit)
            yield Row(f"{what}: RssAnon at most", watched.most / _MIB, "MiB", most=limit)
            yield Row(f"{what}: counted", status.memory.total / _MIB, "MiB")
            files = (store.live_bytes + store.dead_bytes) / store.live_bytes
            yield Row(f"{what}: files / live", files, "x", most=1.15)
            yield Row(f"{what}: frames that are right", compared, "frames")
            yield Row(f"{what}: items", held, "items", least=items)
        stays = (status.memory.total - store.resident_bytes) / items
        yield Row("a transition: stays in memory, as counted", stays, "bytes")
        yield Row("the server before: RssAnon", begin / _MIB, "MiB")


def write_stacks(client: Any, numbers: range) -> None:
    """Writes an item for each number, of its frame and the four before, which others have too."""
    with client.trajectory_writer(num_keep_alive_refs=_STACK) as writer:
        for step in range(numbers.start - _STACK + 1, numbers.stop):
            number = max(step, 0)
            writer.append({"frame": frame(number), "number": np.int64(number)})
            if step >= numbers.start:
                history = writer.history
                stack = {name: history[name][-_STACK:] for name in ("frame", "number")}
                writer.create_item("table", 1.0, stack)


def _chunks(options: Options) -> Iterator[Row]:
    """What stays in memory of a disk chunk, with its item or with a reference to it."""
    chunks = options.size(500_000)
    noise = np.random.default_rng(0).integers(0, 256, (5_000, _CHUNK_BYTES), np.uint8)
    for what, write in (
        ("an item of one disk chunk", lambda client: client.insert_batch([noise], {"table": 1.0})),
        ("one of an item's 1,000 disk chunks", lambda client: _write_long_items(client, noise)),
    ):
        memory = f"{chunks * 400 // _MIB + 16}MiB"
        with open_noise("remote", options, memory=memory) as server:
            client, rss = server.client, RssAnon(server.server.pid)
            write(client)
            client.reset("table")
            before = rss.now()
            for _ in range(0, chunks, len(noise)):
                write(client)
            # Freed memory has to return to the system.
            time.sleep(2)
            status = client.status()
            payloads = status.store.resident_bytes
            taken = (rss.now() - before - payloads) / chunks
            counted = (status.memory.total - payloads) / chunks
        yield Row(f"{what}: RssAnon", taken, "bytes")
        yield Row(f"{what}: counted", counted, "bytes")


def _write_long_items(client: Any, steps: np.ndarray) -> None:
    with client.trajectory_writer(num_keep_alive_refs=1_000) as writer:
        writer.configure(("step",), num_keep_alive_refs=1_000, max_chunk_length=1)
        for number, step in enumerate(steps, 1):
            writer.append({"step": step})
            if number % 1_000 == 0:
                writer.create_item("table", 1.0, {"step": writer.history["step"][-1_000:]})


def _readers(options: Options) -> Iterator[Row]:
    items, most = options.size(20_000), 64 + 128
    gigabyte = 10**8 if options.is_quick else 10**9
    made = frames(range(items))
    with (
        open_noise("remote", options, memory=_SMALL) as server,
        RssAnon(server.server.pid) as watched,
    ):
        fill(server.client, made)
        yield Row("filled: RssAnon at most", watched.most / _MIB, "MiB", most=most)
        for what, read in (
            ("a batch of 1 GB", lambda: _large_batch(server.client, made, gigabyte)),
            (f"{_STREAMS} streams that do not read", lambda: _unread_streams(server)),
        ):
            watched.most = watched.now()
            right = read()
            yield Row(f"{what}: RssAnon at most", watched.most / _MIB, "MiB", most=most)
            yield Row(f"{what}: right", right / 1e6, "MB")
        removed = server.client.status().tables["table"].removed
        yield Row("items that were removed", removed.total, "items")


def _large_batch(client: Any, made: np.ndarray, size: int) -> int:
    """Samples a batch of `size` bytes; returns how many of them are right."""
    got, numbers = client.sample_batch("table", size // made[0].nbytes).data
    got, numbers = got.reshape(-1, *made.shape[1:]), numbers.reshape(-1)
    for at in range(0, len(got), 1_000):
        if not np.array_equal(got[at : at + 1_000], made[numbers[at : at + 1_000]]):
            raise ValueError(f"frames from {at} on came back with other bytes than were written")
    return got.nbytes


def _unread_streams(server: NoiseServer) -> int:
    """Opens streams and leaves them, while another of their connection reads."""
    client = server.client
    streams = [client.sample("table", 10**6, emit_timesteps=False) for _ in range(_STREAMS)]
    for stream in streams:
        check(next(stream).data)
    read, ends = 0, time.monotonic() + 5
    while time.monotonic() < ends:
        read += check(client.sample_batch("table", 32).data)
    traffic = client.status().traffic
    print(f"  {traffic.connections} connections, {sum(traffic.streams.values())} streams")
    for stream in streams:
        stream.close()
    return read * frame(0).nbytes


def _here(options: Options) -> Iterator[Row]:
    """A batch of 1 GB in the process of the server."""
    size = 10**8 if options.is_quick else 10**9
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        pool.submit(_open_here, options).result()
        with RssAnon(pool.submit(os.getpid).result()) as watched:
            before = watched.now()
            right = pool.submit(_sample_here, size).result()
            beside = (watched.most - before - size) / _MIB
        pool.submit(_close_here).result()
    # Another batch of samples, with what belongs to each of them, and what the server may take.
    most = 1.1 * size / _MIB + 64
    yield Row("a batch of 1 GB in process: beside it at most", beside, "MiB", most=most)
    yield Row("a batch of 1 GB in process: right", right / 1e6, "MB")


def _large_items(options: Options) -> Iterator[Row]:
    """An item of 1 GB, loaded from a checkpoint and sampled.

    A client could not insert it: a message has to fit into the server's memory.
    """
    count, most = 100 if options.is_quick else 1_000, 64 + 128
    with tempfile.TemporaryDirectory(dir=options.directory) as saved:
        with open_noise("remote", options, checkpoint_root=saved) as server:
            noise = np.stack([_row(number) for number in range(count)])
            server.client.insert_sequence([noise], {"table": 1.0})
            del noise
            server.client.checkpoint()
        with (
            open_noise("remote", options, memory=_SMALL, checkpoint_root=saved) as server,
            RssAnon(server.server.pid) as watched,
        ):
            (item,) = server.client.sample("table", 1, emit_timesteps=False)
            for number, got in enumerate(item.data[0]):
                if not np.array_equal(got, _row(number)):
                    raise ValueError(f"row {number} has other bytes than were written")
            yield Row("an item of 1 GB: RssAnon at most", watched.most / _MIB, "MiB", most=most)
            yield Row("an item of 1 GB: right", item.data[0].nbytes / 1e6, "MB")
            removed = server.client.status().tables["table"].removed
            yield Row("an item of 1 GB: items that were removed", removed.total, "items")


def _row(number: int) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(number).bytes(_ROW_BYTES), np.uint8)


# Of the process with the server.
_opened = contextlib.ExitStack()
_of_here: list[Any] = []


def _open_here(options: Options) -> None:
    server = _opened.enter_context(open_noise("in_process", options, memory=_SMALL))
    made = frames(range(options.size(20_000)))
    fill(server.client, made)
    _of_here.extend((server.client, made))


def _sample_here(size: int) -> int:
    client, made = _of_here
    return _large_batch(client, made, size)


def _close_here() -> None:
    _opened.close()
