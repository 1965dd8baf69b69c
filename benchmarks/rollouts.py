# SPDX-License-Identifier: Apache-2.0
"""Measures tables with rollouts, beside what rollouts travel by elsewhere.

    python benchmarks/rollouts.py                            # all cases
    python benchmarks/rollouts.py --case latency --rounds 9
    python benchmarks/rollouts.py --quick                    # to see that it runs

Beside TransferQueue (two units of `SimpleStorage`), a Ray actor with an `asyncio.Queue`, and a
`multiprocessing.Queue`, where they are installed: `latency`: from the last rollout of 64 items to
all of them in another process. `inserts`: items with all their rollouts, one call at a time.
`growing`: `open_item` and `add_rollout` from coroutines. `large`: sequences of 1 MB, end to end.
Each way has a producer and a consumer in a process of its own, all are measured in turn, and each
byte that comes is compared with its generator, after the clock.

`queues`: nests of 1 MB, in 2 and in 16 arrays, through queues of 16 items:
`reverb.adapters.queue.Queue`, `multiprocessing.Queue` and `ray.util.queue.Queue`.

Of a server alone: `crowd`: calls of a table of 20,000 items. `image`: eight rollouts of one image,
stored and sent, without the answers. `memory`: what an item takes beside its chunks. `waiting`:
1,000 coroutines in `open_item`. `killed`: from SIGKILL of a generator until its item is with
another.

Ratios are medians over neighbours. The rows also go to `benchmarks/results/rollouts.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from rollout_processes import (
    TABLE,
    Counter,
    Noise,
    Options,
    Remote,
    Shape,
    cpu_s,
    open_server,
)
from rollout_ways import ON_RAY, OURS, ReverbEnd, Ways, open_queues, open_ways, version_of
from store_memory import RssAnon
from store_tables import Row, in_turn, medians, ratio

import reverb

_ACTOR = "Ray actor"
_TRANSFER = "TransferQueue"
_BATCH = 64
_RESULTS = pathlib.Path(__file__).parent / "results" / "rollouts.json"


def main() -> None:
    """Prints a line for each figure, with its goal where it has one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = [*_BESIDE, *_ALONE]
    parser.add_argument("--case", choices=known, action="append", help="only these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the items, two rounds")
    parser.add_argument("--json", type=pathlib.Path, default=_RESULTS)
    arguments = parser.parse_args()
    chosen = arguments.case or known
    options = Options(2 if arguments.quick else arguments.rounds, arguments.quick)
    machine = f"{platform.platform()}, {os.cpu_count()} processors"
    versions = _versions()
    report: dict[str, Any] = {"machine": machine, "versions": versions, "command": sys.argv}
    print(machine, *(f"{name} {version}" for name, version in versions.items()), sep="\n")
    with contextlib.ExitStack() as stack:
        ways = stack.enter_context(open_ways()) if {*chosen} & {*_BESIDE} else None
        for name in (name for name in chosen if name in _BESIDE):
            report[name] = _report(name, lambda name=name: _BESIDE[name](options, ways))
    for name in (name for name in chosen if name in _ALONE):
        report[name] = _report(name, lambda name=name: _ALONE[name](options))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def _versions() -> dict[str, str]:
    found = {name: version_of(name) for name, _ in ON_RAY.values()}
    versions = {name: version or "not installed: skipped" for name, version in found.items()}
    return (
        {OURS: reverb.__version__}
        | versions
        | {"Python": platform.python_version(), "NumPy": np.__version__}
    )


def _report(name: str, rows: Callable[[], Iterator[Row]]) -> dict[str, Any]:
    began, load, lines = time.perf_counter(), os.getloadavg()[0], []
    print(f"{name} (load {load:.1f})", flush=True)
    for row in rows():
        print(f"  {row.what:62}{row.value:12,.4g} {row.unit:10}{row.verdict}", flush=True)
        lines.append(dataclasses.asdict(row) | {"verdict": row.verdict})
    print(f"  {time.perf_counter() - began:.0f} s")
    return {"rows": lines, "load": load}


def _in_turn(
    names: Iterable[str], rounds: int, measure: Callable[[str], float]
) -> dict[str, list[float]]:
    return in_turn({name: functools.partial(measure, name) for name in names}, rounds)


def _latency(options: Options, ways: Ways) -> Iterator[Row]:
    goals = {"p50": 6.0, "p99": 30.0, _TRANSFER: 3.0}
    yield from _latencies(options, ways, "4 MB", Shape(8, 1_024), goals)
    yield from _latencies(options, ways, "64 KB", Shape(8, 16), {"p50": 1.5})


def _latencies(
    options: Options, ways: Ways, what: str, shape: Shape, goals: Mapping[str, float]
) -> Iterator[Row]:
    calls = options.size(100)
    confirmed_ms: dict[str, list[float]] = {name: [] for name in ways.pairs}

    def measure(name: str) -> float:
        producer, consumer = ways.pairs[name]
        spent_ms = []
        # What is slow is measured less often.
        for _ in range(calls if name == OURS else max(calls // 5, 2)):
            first = ways.numbers(_BATCH)
            producer.ask("begin", first, _BATCH, shape)
            consumer.tell("take_once", _BATCH, shape)
            sent, confirmed = producer.ask("finish", first + _BATCH - 1, shape)
            there = consumer.answer()
            spent_ms.append((there - sent) / 1e6)
            confirmed_ms[name].append((there - confirmed) / 1e6)
        return statistics.median(spent_ms)

    measured = _in_turn(ways.pairs, options.rounds, measure)
    # Without those of the warm-up.
    ours = confirmed_ms[OURS][calls:]
    for name, percent in (("p50", 50), ("p99", 99)):
        value = float(np.percentile(ours, percent))
        confirmed = f"{what}: last rollout confirmed -> taken, {name}"
        yield Row(confirmed, value, "ms", most=goals.get(name))
    for row in medians(measured, "ms"):
        yield dataclasses.replace(row, what=f"{what}: last rollout sent -> taken, {row.what}")
    for name in measured:
        if name != OURS:
            value = ratio(measured, name, OURS)
            yield Row(f"{what}: {name} / ours", value, "x", least=goals.get(name))


def _inserts(options: Options, ways: Ways) -> Iterator[Row]:
    shape = Shape(8, 64)
    counts = {OURS: options.size(4_000), "multiprocessing.Queue": options.size(4_000)}

    def measure(name: str) -> float:
        producer, consumer = ways.pairs[name]
        count = counts.get(name, options.size(500))
        first = ways.numbers(count)
        if name in ways.confirming:
            began, ended = producer.ask("fill", first, count, shape)
            consumer.ask("drain", count, _BATCH, shape)
        else:
            # Nothing says when an item is with others, but that they have it.
            consumer.tell("drain", count, _BATCH, shape)
            began, _ = producer.ask("fill", first, count, shape)
            ended = consumer.answer()
        return count / (ended - began) * 1e9

    measured = _in_turn(ways.pairs, options.rounds, measure)
    for name, values in measured.items():
        how = "confirmed" if name in ways.confirming else "end to end"
        least = 4_000 if name == OURS else None
        yield Row(f"{name}, {how}", statistics.median(values), "items/s", least=least)
    yield from _ratios(measured, {_ACTOR: 3.0})


def _ratios(measured: dict[str, list[float]], goals: Mapping[str, float]) -> Iterator[Row]:
    """Ours to each of the others."""
    for name in measured:
        if name != OURS:
            value = ratio(measured, OURS, name)
            yield Row(f"ours / {name}", value, "x", least=goals.get(name))


def _growing(options: Options, ways: Ways) -> Iterator[Row]:
    shape, eight, one = Shape(8, 64), "8 coroutines", "1 coroutine"
    spent_us: dict[str, list[float]] = {}

    def measure(what: str) -> float:
        name, _, how = what.partition(", ")
        producer, consumer = ways.pairs[name]
        count = options.size(400 if name == OURS else 80)
        first = ways.numbers(count)
        producer.ask("prompts", first, count)
        seconds, spent_s = producer.ask("grow_all", first, count, shape, 8 if how == eight else 1)
        consumer.ask("drain_grown", count, 8, shape)
        spent_us.setdefault(what, []).append(1e6 * statistics.median(spent_s))
        return len(spent_s) / seconds

    names = [f"{name}, {how}" for how in (eight, one) for name in ways.pairs]
    names = [name for name in names if name.partition(", ")[0] in ways.confirming]
    measured = _in_turn(names, options.rounds, measure)
    for what, values in measured.items():
        is_ours, has_goal = what.startswith(OURS), what.endswith(eight)
        least = 4_000 if is_ours and has_goal else None
        yield Row(what, statistics.median(values), "calls/s", least=least)
        most = 400 if is_ours else None
        yield Row(f"{what}: p50", statistics.median(spent_us[what][1:]), "us", most=most)


def _large(options: Options, ways: Ways) -> Iterator[Row]:
    goals = {_ACTOR: 2.0, _TRANSFER: 2.0}
    yield from _end_to_end(ways, options, Shape(8, 131_072), 32, goals, 600)


def _queues(options: Options) -> Iterator[Row]:
    goals = {"multiprocessing.Queue": 2.0, "ray.util.queue.Queue": 2.0}
    with open_queues() as ways:
        for what, shape in (("2 arrays", Shape(1, 131_072)), ("16 arrays", Shape(8, 16_384))):
            for row in _end_to_end(ways, options, shape, 256, goals):
                yield dataclasses.replace(row, what=f"{what}: {row.what}")


def _end_to_end(
    ways: Ways,
    options: Options,
    shape: Shape,
    usual: int,
    goals: Mapping[str, float],
    least_mb: float | None = None,
) -> Iterator[Row]:
    """How fast a producer and a consumer are together."""
    count = options.size(usual)

    def measure(name: str) -> float:
        producer, consumer = ways.pairs[name]
        consumer.tell("drain", count, 1, shape)
        began, _ = producer.ask("fill", ways.numbers(count), count, shape)
        return count * shape.item_bytes / (consumer.answer() - began) * 1e3

    measured = _in_turn(ways.pairs, options.rounds, measure)
    for name, values in measured.items():
        least = least_mb if name == OURS else None
        yield Row(name, statistics.median(values), "MB/s", least=least)
    yield from _ratios(measured, goals)


def _crowd(options: Options) -> Iterator[Row]:
    size, shape = options.size(10_000), Shape(8, 4)
    returns = f"set_version that returns {size:,} to prompts"
    goals: dict[str, float | None] = {"take(64), as the client sees it": 1, returns: 30}
    measured: dict[str, list[float]] = {name: [] for name in goals}
    with open_server(max_staleness=1) as (address, server), Remote(ReverbEnd(address)) as other:
        client = reverb.Client(address)

        def prepare(round_: int) -> Callable[[], object]:
            """Fills the table; returns a call that makes half of it stale."""
            client.reset(TABLE)
            other.ask("fill", 0, size, shape)
            other.ask("prompts", size, size)
            return lambda: client.set_version(TABLE, 2 * round_ + 2)

        def measure(name: str, call: Callable[[], Any]) -> Any:
            began, spent_s = time.perf_counter(), cpu_s(server.pid)
            found = call()
            measured.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
            spent_ms = (cpu_s(server.pid) - spent_s) * 1e3
            measured.setdefault(f"{name}: the server's processors", []).append(spent_ms)
            return found

        for round_ in range(2 * options.rounds):
            make_stale = prepare(round_)
            for _ in range(options.size(100)):
                batch = measure(
                    "take(64), as the client sees it",
                    lambda: client.take(TABLE, _BATCH, with_data=False),
                )
                client.release(batch)
            if round_ % 2:
                calm = other.ask("probe", 0.5) * 1e3
                measured.setdefault("longest other call in calm times", []).append(calm)
                other.tell("probe", 0.5)
                # Into the middle of it.
                time.sleep(0.1)
                make_stale()
                beside = other.answer() * 1e3
                measured.setdefault("longest other call beside set_version", []).append(beside)
            else:
                measure(returns, make_stale)
            now = client.server_info()[TABLE].rollouts
            if (now.open, now.ready) != (2 * size, 0):
                raise ValueError(f"{now.open} items are open and {now.ready} ready")
    for name, values in measured.items():
        yield Row(name, statistics.median(values), "ms", most=goals.get(name))
    held_ms = statistics.median(measured[f"{returns}: the server's processors"])
    # It has the lock for that many at once.
    yield Row("for 512 of them: the server's processors", held_ms * 512 / size, "ms", most=1)


def _image(options: Options) -> Iterator[Row]:
    shape = Shape(8, 1_024)
    image = np.random.default_rng(0).integers(0, 2**31, (1_024, 1_024), np.int32)
    for what, value in (("rows of pixels", image), ("flat", image.ravel())):
        with open_server(prompt=(None,) * value.ndim) as (address, _):
            ends = [Counter(address) for _ in range(3)]
            feeder, generator, learner = (reverb.Client(end.address) for end in ends)
            feeder.insert_item(TABLE, {"prompt": value})
            with generator.open_item(TABLE) as item:
                for rollout in Noise().rollouts(0, shape):
                    generator.add_rollout(item, rollout)
            stored = feeder.status().tables[TABLE].bytes
            batch = learner.take(TABLE, 1)
            if not np.array_equal(batch.data["prompt"].values, value):
                raise ValueError("the image is not what was sent")
        both = {"stored": stored, "sent by feeder and generator": ends[0].sent + ends[1].sent}
        both["received by the learner"] = ends[2].received
        for name, size in both.items():
            yield Row(
                f"{what}: {name}", (size - shape.item_bytes) / image.nbytes, "images", most=1.1
            )
        opened = ends[1].received / image.nbytes
        yield Row(f"{what}: received by the generator", opened, "images", most=1.1)


def _memory(options: Options) -> Iterator[Row]:
    count, noise, shape = options.size(40_000), Noise(), Shape(8, 1)

    def fill(client: Any, first: int) -> int:
        for number in range(first, first + count):
            prompt = {"prompt": np.array([number], np.int32)}
            client.insert_item(TABLE, prompt, noise.rollouts(number, shape))
        return client.status().tables[TABLE].bytes

    found = []
    for _ in range(max(options.rounds // 2, 1)):
        with open_server() as (address, server):
            client, memory = reverb.Client(address), RssAnon(server.pid)
            # What the server takes once is there after some of them.
            counted, taken = fill(client, 0), memory.now()
            counted, taken = fill(client, count) - counted, memory.now() - taken
            client.reset(TABLE)
            client.insert_item(TABLE, {"prompt": np.zeros(1, np.int32)})
            sizes = []
            with client.open_item(TABLE) as item:
                for rollout in noise.rollouts(0, shape)[:-1]:
                    sizes.append(client.status().tables[TABLE].bytes)
                    client.add_rollout(item, rollout)
            # What a rollout adds before the item is complete is its chunk.
            found.append((taken / count, counted / count, np.diff(sizes).mean()))
    whole, counted, chunk = (statistics.median(values) for values in zip(*found, strict=True))
    # Nine of them: a prompt has one, too.
    yield Row("item of 8 rollouts with its 9 chunks", whole, "bytes")
    yield Row("the same, as the server counts it", counted, "bytes")
    yield Row("a chunk, as the server counts it", chunk, "bytes")
    yield Row("item of 8 rollouts beside its chunks", whole - 9 * chunk, "bytes", most=900)
    yield Row("the same, as the server counts it", counted - 9 * chunk, "bytes")


def _waiting(options: Options) -> Iterator[Row]:
    seconds, coroutines = 1.0 if options.is_quick else 5.0, 1_000
    found = []
    for _ in range(options.rounds):
        with open_server() as (address, server), Remote(ReverbEnd(address)) as end:
            found.append(end.ask("wait", coroutines, seconds, server.pid))
    threads, ours_s, servers_s = (statistics.median(it) for it in zip(*found, strict=True))
    yield Row(f"{coroutines:,} coroutines: threads", threads, "threads", most=0)
    yield Row("processors of their process", 100 * ours_s / seconds, "% of one", most=1)
    yield Row("processors of the server", 100 * servers_s / seconds, "% of one", most=1)


def _killed(options: Options) -> Iterator[Row]:
    grace_s, waits_s = 0.5, []
    with open_server(grace_s) as (address, _):
        client = reverb.Client(address)
        for _ in range(2 * options.rounds):
            client.reset(TABLE)
            client.insert_item(TABLE, {"prompt": np.zeros(1, np.int32)})
            with Remote(ReverbEnd(address)) as other, Remote(ReverbEnd(address)) as generator:
                generator.ask("hold")
                other.tell("hold")
                began = time.monotonic_ns()
                generator.kill()
                waits_s.append((other.answer() - began) / 1e9)
    yield Row(
        "SIGKILL -> with another, median", statistics.median(waits_s), "s", most=grace_s + 0.3
    )
    yield Row("SIGKILL -> with another, longest", max(waits_s), "s", most=grace_s + 0.3)


_ALONE: dict[str, Callable[[Options], Iterator[Row]]] = {
    "queues": _queues,
    "crowd": _crowd,
    "image": _image,
    "memory": _memory,
    "waiting": _waiting,
    "killed": _killed,
}

_BESIDE: dict[str, Callable[[Options, Any], Iterator[Row]]] = {
    "latency": _latency,
    "inserts": _inserts,
    "growing": _growing,
    "large": _large,
}

if __name__ == "__main__":
    main()
