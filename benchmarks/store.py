# SPDX-License-Identifier: Apache-2.0
"""Measures tables larger than memory, and journals, beside tables in memory and the disk itself.

    python benchmarks/store.py                        # all cases
    python benchmarks/store.py --case warm --case cold --rounds 9
    python benchmarks/store.py --case memory --items 1000000 --memory 900MiB
    python benchmarks/store.py --quick                # to see that it runs

Items are a frame of uint8[84, 84] of noise, and its number. `warm`: batches of 32 from memory, from
a store while it is resident, and after it went to the disk, with its files in the page cache;
beside a loop of `pread` and checksum. `cold`: the same without the page cache. `beside`: batches of
a resident table beside another one that is sampled all the time. `inserts`: with and without a
store, and plain writes. `garbage`: sizes of files of full tables. `memory`: `RssAnon` of the
server, seen from outside. `journal`: small inserts, updates and confirmations with a journal beside
no store. `base`: calls while a base is made beside calm times. `recovery`: starts after a kill,
without the page cache. All of a case are measured in turn, and ratios are medians over
neighbours.

Frames that come back are compared with their generator. Data files lie in `--directory`, which must
be on a disk with 10 GB free and no tmpfs. The rows also go to `benchmarks/results/store.json`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import store_journal
import store_memory
from payloads import FRAME_SHAPE
from servers import TableSpec
from store_reads import cached_part, forget_pages, open_loop, read_from_disk
from store_tables import (
    NoiseServer,
    Options,
    Row,
    check,
    fill,
    frames,
    in_turn,
    medians,
    open_noise,
    ratio,
)

_BATCH = 32
_WHERE = ("in_process", "remote")
# Leaves almost no payload in memory.
_SPILLED = "16MiB"
_RESIDENT = "8GiB"
_FRAME_BYTES = FRAME_SHAPE[0] * FRAME_SHAPE[1]
_RESULTS = pathlib.Path(__file__).parent / "results" / "store.json"


def main() -> None:
    """Prints a line for each figure, with its goal where it has one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", choices=_CASES, action="append", help="only these")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--items", type=int, help="of the table of each case")
    parser.add_argument("--memory", help="max_bytes of the transitions in `memory`")
    parser.add_argument("--directory", help="for data files; by default that of temporary files")
    parser.add_argument("--quick", action="store_true", help="a fifth of the items, two rounds")
    parser.add_argument("--json", type=pathlib.Path, default=_RESULTS)
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else arguments.rounds
    options = Options(
        rounds, arguments.directory, arguments.quick, arguments.items, arguments.memory
    )
    machine = f"{platform.platform()}, {os.cpu_count()} processors"
    report: dict[str, Any] = {"machine": machine, "command": sys.argv, "rounds": rounds}
    print(machine)
    for name in arguments.case or _CASES:
        began, rows = time.perf_counter(), []
        print(f"{name} (load {os.getloadavg()[0]:.1f})", flush=True)
        for row in _CASES[name](options):
            print(f"  {row.what:58}{row.value:12,.4g} {row.unit:12}{row.verdict}", flush=True)
            rows.append(dataclasses.asdict(row) | {"verdict": row.verdict})
        report[name] = {"rows": rows, "load": os.getloadavg()[0]}
        print(f"  {time.perf_counter() - began:.0f} s")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def _batches(client: Any, number: int, table: str = "table") -> float:
    """Samples batches; returns how many a second."""
    began = time.perf_counter()
    for _ in range(number):
        client.sample_batch(table, _BATCH)
    seconds = time.perf_counter() - began
    check(client.sample_batch(table, _BATCH).data)
    return number / seconds


def _batches_and_cpu(server: NoiseServer, number: int, cpu_s: list[float]) -> float:
    """Samples batches; adds the time of processors for one, of both ends."""
    before = time.process_time() + server.server.cpu_seconds()
    rate = _batches(server.client, number)
    cpu_s.append((time.process_time() + server.server.cpu_seconds() - before) / number)
    return rate


def _payload_bytes(server: NoiseServer, items: int) -> int:
    """Bytes of a frame in a data file."""
    payload = round(server.client.status().store.written_bytes / items)
    # A few items may be in memory only.
    return min(max(payload, _FRAME_BYTES), _FRAME_BYTES + 64)


def _warm(options: Options) -> Iterator[Row]:
    items = options.size(40_000)
    made, seconds = frames(range(items)), 0.2 if options.is_quick else 0.5
    kinds = {"RAM": None, "resident": _RESIDENT, "spilled": _SPILLED}
    with contextlib.ExitStack() as stack:
        servers = {}
        for where in _WHERE:
            for kind, memory in kinds.items():
                server = stack.enter_context(open_noise(where, options, memory=memory))
                fill(server.client, made)
                servers[f"{where}, {kind}"] = server
        spilled = servers["remote, spilled"]
        size = _payload_bytes(spilled, items)
        loop = stack.enter_context(open_loop(spilled.files(), size, 2))
        subjects: dict[str, Callable[[], float]] = {}
        cpu_s: dict[str, list[float]] = {name: [] for name in servers}
        for name, server in servers.items():
            number = 1 + int(seconds * _batches(server.client, 200))
            subjects[name] = lambda server=server, number=number, name=name: _batches_and_cpu(
                server, number, cpu_s[name]
            )
        reads = int(seconds * loop.rate(items))
        subjects["loop of pread and CRC-32C"] = lambda: loop.rate(reads) / _BATCH
        measured = in_turn(subjects, options.rounds)
        for where in _WHERE:
            status = servers[f"{where}, spilled"].client.status().store
            part = 1 - status.resident_bytes / (items * size)
            yield Row(f"{where}: on the disk", part, "of all", least=0.95)
    yield from medians(measured, "batches/s")
    for name, seconds_each in cpu_s.items():
        yield Row(f"{name}: processors", 1e6 * statistics.median(seconds_each[1:]), "us/batch")
    here, remote = (ratio(measured, f"{where}, spilled", f"{where}, RAM") for where in _WHERE)
    of_loop = ratio(measured, "in_process, spilled", "loop of pread and CRC-32C")
    # The goal is the smaller of two: 0.5 x of memory, and 0.6 x of the loop.
    yield Row("in_process: spilled / RAM", here, "x", least=0.5 if of_loop < 0.6 else None)
    yield Row("in_process: spilled / loop", of_loop, "x", least=0.6 if here < 0.5 else None)
    yield Row("remote: spilled / RAM", remote, "x", least=0.7)
    for where, least in zip(_WHERE, (0.75, 0.8), strict=True):
        value = ratio(measured, f"{where}, resident", f"{where}, RAM")
        yield Row(f"{where}: resident / RAM", value, "x", least=least)


def _cold(options: Options) -> Iterator[Row]:
    items = options.size(100_000)
    # A round reads a small part of the files, so that it finds hardly anything that it has read.
    number, made = items // 10 // _BATCH, frames(range(items))
    with contextlib.ExitStack() as stack:
        servers = {}
        for where in _WHERE:
            server = stack.enter_context(open_noise(where, options, memory="32MiB"))
            fill(server.client, made)
            servers[where] = server
        files = [path for server in servers.values() for path in server.files()]
        size = _payload_bytes(servers["remote"], items)
        loop = stack.enter_context(open_loop(servers["remote"].files(), size, 4))
        cached, read = [], []

        def forget() -> None:
            forget_pages(files)
            cached.append(cached_part(files))

        def sample(server: NoiseServer, how: Callable[[Any, int], float]) -> float:
            before = read_from_disk(server.server.pid)
            rate = how(server.client, number)
            read.append((read_from_disk(server.server.pid) - before) / (number * _BATCH * size))
            return rate

        ways = {"": _batches, ", fetched ahead": _fetched_ahead, ", four threads": _four_threads}
        subjects: dict[str, Callable[[], float]] = {
            f"{where}{way}": lambda server=server, how=how: sample(server, how)
            for where, server in servers.items()
            for way, how in ways.items()
        }
        subjects["four loops of pread"] = lambda: loop.rate(number * _BATCH, False) / _BATCH
        measured = in_turn(subjects, options.rounds, forget)
    yield Row("files in the page cache before a round, at most", max(cached), "of all", most=0.01)
    yield Row("read from the disk / sampled, at least", min(read), "x", least=0.7)
    yield from medians(measured, "batches/s")
    for name in list(subjects)[:-1]:
        value = ratio(measured, name, "four loops of pread")
        yield Row(f"{name}: of the loops", value, "x", least=0.6)


def _fetched_ahead(client: Any, number: int) -> float:
    began = time.perf_counter()
    with client.batches("table", _BATCH) as batches:
        for _ in range(number):
            next(batches)
        seconds = time.perf_counter() - began
        check(next(batches).data)
    return number / seconds


def _four_threads(client: Any, number: int) -> float:
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: client.sample_batch("table", _BATCH), range(number)))
    return number / (time.perf_counter() - began)


def _beside(options: Options) -> Iterator[Row]:
    items, calls = options.size(60_000), 300 if options.is_quick else 1_000
    made, near = frames(range(items)), items // 15
    # The sweep takes the oldest first, so the first table goes to the disk. Its headers and the
    # second table take 7 % of its payloads each.
    tables = TableSpec("other"), TableSpec("near")
    cold_memory = f"{items * _FRAME_BYTES // 5 >> 20}MiB"
    with contextlib.ExitStack() as stack:
        subjects: dict[str, Callable[[], float]] = {}
        floods: dict[str, list[tuple[float, float]]] = {}
        for kind, memory in (("cold", cold_memory), ("resident", _RESIDENT)):
            server = stack.enter_context(open_noise("remote", options, *tables, memory=memory))
            fill(server.client, made, "other")
            fill(server.client, made, "near", near)
            reads = server.client.status().store.reads
            _batches(server.client, 10 * near // _BATCH, "near")
            store = server.client.status().store
            yield Row(f"beside a {kind} one: reads of the table itself", store.reads - reads, "")
            part = store.live_bytes / (items * _FRAME_BYTES)
            yield Row(f"beside a {kind} one: of that on the disk", part, "of all")
            flood = stack.enter_context(_open_flood(server))
            floods[kind] = []
            subjects[f"beside a {kind} one"] = lambda server=server, flood=flood, kind=kind: _p99(
                server, calls, flood, floods[kind]
            )
        measured = in_turn(subjects, options.rounds)
    yield from medians(measured, "ms, p99")
    for kind, seen in floods.items():
        flooded, from_disk = map(statistics.median, zip(*seen, strict=True))
        yield Row(f"the {kind} one meanwhile", flooded, "batches/s")
        yield Row(f"the {kind} one meanwhile, from the disk", from_disk / 2**20, "MiB/s")
    yield Row("p99 beside a cold / a resident one", ratio(measured, *subjects), "x", most=2)


def _p99(server: NoiseServer, calls: int, flood: Any, seen: list[tuple[float, float]]) -> float:
    """The 99th percentile of a batch while the other table is sampled, in milliseconds."""
    goes, count = flood
    goes.set()
    time.sleep(0.5)
    batches, disk_bytes, seconds = count.value, read_from_disk(server.server.pid), np.empty(calls)
    for i in range(calls):
        began = time.perf_counter()
        server.client.sample_batch("near", _BATCH)
        seconds[i] = time.perf_counter() - began
    took = seconds.sum()
    disk_bytes = read_from_disk(server.server.pid) - disk_bytes
    seen.append(((count.value - batches) / took, disk_bytes / took))
    goes.clear()
    return 1e3 * float(np.percentile(seconds, 99))


@contextlib.contextmanager
def _open_flood(server: NoiseServer) -> Iterator[Any]:
    """Starts a process that samples the table `other` while an event is set, and counts."""
    context = multiprocessing.get_context("spawn")
    goes, count = context.Event(), context.Value("q", 0)
    files = [str(path) for path in server.files()]
    process = context.Process(target=_flood, args=(server.server.address, files, goes, count))
    process.start()
    try:
        yield goes, count
    finally:
        process.kill()
        process.join()


def _flood(address: str, files: list[str], goes: Any, count: Any) -> None:
    import reverb

    client, paths = reverb.Client(address), [pathlib.Path(file) for file in files]
    while goes.wait():
        # Cold stays cold.
        forget_pages(paths)
        for _ in range(100):
            client.sample_batch("other", _BATCH)
            count.value += 1


def _inserts(options: Options) -> Iterator[Row]:
    items, made = options.size(20_000), frames(range(1_000))
    payload = items * _FRAME_BYTES
    # Room for headers, and for hardly any payload.
    memory = f"{max(24, 300 * items * (options.rounds + 2) >> 20)}MiB"
    # Without and with items that make room for others.
    tables = TableSpec("growing"), TableSpec("full", max_size=items)
    with contextlib.ExitStack() as stack:
        subjects: dict[str, Callable[[], float]] = {}
        servers = {}
        for where in _WHERE:
            for kind, limit in (("RAM", None), ("store", memory)):
                server = stack.enter_context(open_noise(where, options, *tables, memory=limit))
                fill(server.client, made, "full", items)
                servers[f"{where}, {kind}"] = server
        for table in ("growing", "full"):
            for name, server in servers.items():
                subjects[f"{table}, {name}"] = lambda client=server.client, table=table: (
                    payload / 1e6 / _seconds(lambda: fill(client, made, table, items))
                )
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory))
        for table in ("growing", "full"):
            subjects[f"{table}, plain writes"] = lambda table=table: (
                payload / 1e6 / _seconds(lambda: _write(pathlib.Path(directory), table, payload))
            )
        measured = in_turn(subjects, options.rounds)
        for name, server in servers.items():
            if (store := server.client.status().store) is not None:
                part = store.live_bytes / (payload * (options.rounds + 2))
                yield Row(f"{name}: on the disk", part, "of all", least=0.9)
    yield from medians(measured, "MB/s")
    for table in ("growing", "full"):
        for where in _WHERE:
            one = f"{table}, {where}"
            of_memory = ratio(measured, f"{one}, store", f"{one}, RAM")
            of_writes = ratio(measured, f"{one}, store", f"{table}, plain writes")
            # The goal is the smaller of two.
            yield Row(f"{one}: / RAM", of_memory, "x", least=0.6 if of_writes < 0.8 else None)
            yield Row(f"{one}: / writes", of_writes, "x", least=0.8 if of_memory < 0.6 else None)


def _write(directory: pathlib.Path, table: str, size: int) -> None:
    """Writes a file of noise, a MiB at a time; for the full table, instead of the one before."""
    before = sorted(directory.glob(f"{table}*"))
    part = np.random.default_rng(0).bytes(1 << 20)
    with (directory / f"{table}{len(before)}").open("wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(part)
    if table == "full":
        for path in before:
            path.unlink()


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _garbage(options: Options) -> Iterator[Row]:
    items, made = options.size(60_000), frames(range(1_000))
    for remover, most_files, most_written in (("uniform", 1.5, 2.5), ("fifo", 1.15, 1.1)):
        table = TableSpec(max_size=items, remover=remover)
        with open_noise("remote", options, table, memory="32MiB") as server:
            fill(server.client, made, count=items)
            of_live = []
            for _ in range(50):
                fill(server.client, made, count=items // 10)
                store = server.client.status().store
                of_live.append((store.live_bytes + store.dead_bytes) / store.live_bytes)
            _batches(server.client, 50)
            store = server.client.status().store
            on_disk = sum(path.stat().st_size for path in server.files()) / store.live_bytes
            lost = server.client.status().tables["table"].removed.lost
        payload = 6 * items * _FRAME_BYTES
        written = (store.written_bytes + store.moved_bytes) / payload
        yield Row(f"{remover}: files / live, at the end", of_live[-1], "x", most=most_files)
        yield Row(f"{remover}: files / live, at worst", max(of_live), "x", most=most_files)
        yield Row(f"{remover}: sizes of files / live, at the end", on_disk, "x")
        yield Row(f"{remover}: written / inserted", written, "x", most=most_written)
        yield Row(f"{remover}: moved / inserted", store.moved_bytes / payload, "x")
        yield Row(f"{remover}: lost items", lost, "items")


_CASES: dict[str, Callable[[Options], Iterator[Row]]] = {
    "warm": _warm,
    "cold": _cold,
    "beside": _beside,
    "inserts": _inserts,
    "garbage": _garbage,
    "memory": store_memory.rows,
    "journal": store_journal.rows,
    "base": store_journal.base_rows,
    "recovery": store_journal.recovery_rows,
}

if __name__ == "__main__":
    main()
