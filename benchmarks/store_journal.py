# SPDX-License-Identifier: Apache-2.0
"""What a journal costs clients, what a base costs them, and how long a start with one takes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from servers import ServerUnderTest, TableSpec, open_server
from store_memory import RssAnon, write_stacks
from store_reads import forget_pages, read_from_disk
from store_tables import NoiseServer, Options, Row, check, in_turn, medians, open_noise, ratio

_MIB = 2**20
_KINDS = ("no store", "journal")
_BATCH = 256
_FILLED_AT_ONCE = 5_000
_UPDATED = 500
# Of a learner and of an actor: 200 calls a second each.
_TICK_S = 0.005
_INSERTED = 100
_SAMPLED = 32
# A base may begin between two looks for its file.
_LOOK_S = 0.02
_MARGIN_S = 0.1
_DEADLINE_S = 240.0

_Call = Callable[[int], object]


def rows(options: Options) -> Iterator[Row]:
    """Rates and confirmations of a server with a journal, beside one without a store."""
    seconds = 0.5 if options.is_quick else 2.0
    calls = 300 if options.is_quick else 2_000
    table = TableSpec(sampler="prioritized")
    rates: dict[str, list[float]] = {}
    cpu_us: dict[str, list[float]] = {}
    # What leaves the journal most to do comes last.
    goals = {"updates": 0.9, "insert": 0.85, "writer, items": 0.85, "insert_batch, items": 0.6}
    with contextlib.ExitStack() as stack:
        all_operations: dict[str, dict[str, tuple[_Call, int]]] = {}
        servers = {
            kind: stack.enter_context(
                open_noise("remote", options, table, journal=kind == "journal")
            ).server
            for kind in _KINDS
        }
        for kind, server in servers.items():
            all_operations[kind] = _operations(server.client, stack)
        subjects: dict[str, Callable[[], float]] = {
            kind: functools.partial(_percentile, operations["confirmation"][0], calls, 99)
            for kind, operations in all_operations.items()
        }
        confirmations = in_turn(subjects, options.rounds)
        for what in goals:
            subjects = {}
            for kind, operations in all_operations.items():
                name, call = f"{what}, {kind}", operations[what]
                cpu_us[name] = []
                subjects[name] = functools.partial(
                    _rate, *call, seconds, servers[kind], cpu_us[name]
                )
            rates |= in_turn(subjects, options.rounds)
    yield from medians(rates, "1/s")
    yield from medians({f"confirmation, {k}": v for k, v in confirmations.items()}, "ms, p99")
    for what, least in goals.items():
        value = ratio(rates, f"{what}, journal", f"{what}, no store")
        yield Row(f"{what}: journal / no store", value, "x", least=least)
        used = [statistics.median(cpu_us[f"{what}, {kind}"][1:]) for kind in _KINDS]
        for kind, value in zip(_KINDS, used, strict=True):
            yield Row(f"{what}, {kind}: processors of the server", value, "us each")
    value = ratio(confirmations, "journal", "no store")
    yield Row("p99 of a confirmation: journal / no store", value, "x", most=2)
    yield from _locks(options)


def _operations(client: Any, stack: contextlib.ExitStack) -> dict[str, tuple[_Call, int]]:
    """What is done `n` times, and how many things that are each time."""
    one, made = _steps(range(1)), _steps(range(_BATCH))
    step = {name: column[0] for name, column in one.items()}
    keys = client.insert_batch(_steps(range(20_000)), {"table": 1.0})["table"]
    picked = np.random.default_rng(0).choice(keys, (100, _BATCH))
    updates = itertools.cycle(dict.fromkeys(row.tolist(), 2.0) for row in picked)
    writer = stack.enter_context(client.trajectory_writer(num_keep_alive_refs=1))

    def write(count: int) -> None:
        for _ in range(count):
            writer.append(step)
            history = {name: column[-1:] for name, column in writer.history.items()}
            writer.create_item("table", 1.0, history)
        writer.flush()

    def repeat(call: Callable[[], object]) -> _Call:
        return lambda count: [call() for _ in range(count)]

    return {
        "insert": (repeat(lambda: client.insert(list(step.values()), {"table": 1.0})), 1),
        "writer, items": (write, 1),
        "insert_batch, items": (repeat(lambda: client.insert_batch(made, {"table": 1.0})), _BATCH),
        "updates": (repeat(lambda: client.mutate_priorities("table", next(updates))), _BATCH),
        "confirmation": (write, 1),
    }


def _steps(numbers: Sequence[int]) -> dict[str, np.ndarray]:
    """Small steps: a number, and an observation of 16 bytes that tells it too."""
    column = np.asarray(numbers)
    return {"number": column, "observation": np.repeat(column[:, None], 4, 1).astype(np.float32)}


def _rate(
    call: _Call, per_call: int, seconds: float, server: ServerUnderTest, cpu_us: list[float]
) -> float:
    """How many a second, over a time that has commits in it; adds the server's time for one."""
    count, done, cpu_s = 1, 1, server.cpu_seconds()
    began = time.perf_counter()
    call(1)
    while (took := time.perf_counter() - began) < seconds:
        count = max(1, min(4 * count, round(done / took * (seconds - took))))
        call(count)
        done += count
    cpu_us.append(1e6 * (server.cpu_seconds() - cpu_s) / (done * per_call))
    return done * per_call / took


def _percentile(call: _Call, calls: int, percent: float) -> float:
    """A percentile of the time of a call, in milliseconds."""
    took = np.empty(calls)
    for at in range(calls):
        began = time.perf_counter()
        call(1)
        took[at] = time.perf_counter() - began
    return 1e3 * float(np.percentile(took, percent))


def _locks(options: Options) -> Iterator[Row]:
    """Samples beside commits of many updates.

    A commit each second that locked the table would be seen in the longest of a thousand calls.
    """
    items, calls = options.size(1_000_000), 3_000 if options.is_quick else 15_000
    with contextlib.ExitStack() as stack:
        subjects = {}
        for kind in _KINDS:
            server = stack.enter_context(open_noise("remote", options, journal=kind == "journal"))
            _fill(server.client, items)
            keys = server.client.sample_batch("table", 200 * _UPDATED).info.key.reshape(200, -1)
            updates = [dict.fromkeys(row.tolist(), 2.0) for row in keys]
            subjects[f"a sample, {kind}"] = functools.partial(
                _sample_and_update, server.client, updates, calls
            )
        measured = in_turn(subjects, min(options.rounds, 3))
    yield from medians(measured, "ms, p99.9")
    beside = np.median(np.subtract(*(measured[name] for name in reversed(subjects))))
    yield Row(f"a sample, {items:,} items: journal - no store", beside, "ms, p99.9", most=5)


def _sample_and_update(client: Any, updates: list[dict[int, float]], calls: int) -> float:
    took = np.empty(calls)
    for at in range(calls):
        client.mutate_priorities("table", updates[at % len(updates)])
        began = time.perf_counter()
        client.sample_batch("table", 1)
        took[at] = time.perf_counter() - began
    return 1e3 * float(np.percentile(took, 99.9))


def _fill(client: Any, items: int) -> None:
    for begin in range(0, items, _FILLED_AT_ONCE):
        steps = _steps(range(begin, min(begin + _FILLED_AT_ONCE, items)))
        client.insert_batch(steps, {"table": 1.0})


def base_rows(options: Options) -> Iterator[Row]:
    """A table that is written, sampled and updated, while bases are made and between them."""
    items, bases = options.size(1_000_000), 1 if options.is_quick else 3
    table = TableSpec(sampler="prioritized", max_size=items)
    with open_noise("remote", options, table, journal=True) as server:
        _fill(server.client, items)
        _wait_until_still(server.directory / "store")
        with _calls_of(_act, server) as inserts, _calls_of(_learn, server) as samples:
            looks = _watch(server, bases)
            all_calls = {"inserts of 100": inserts(), f"samples of {_SAMPLED}": samples()}
    times, rss, has_base = np.array(looks).T
    has_base = has_base.astype(bool)
    edges = np.flatnonzero(np.diff(has_base))
    begins, ends = times[edges[0:-1:2]], times[edges[1::2] + 1]
    yield Row("bases", len(begins), "")
    yield Row("a base takes", float(np.median(ends - begins)), "s")
    for what, calls in all_calls.items():
        began, took = calls.T
        own = [(began >= b - _LOOK_S) & (began < e) for b, e in zip(begins, ends, strict=True)]
        near = [
            (began >= b - _LOOK_S - _MARGIN_S) & (began < e + _MARGIN_S)
            for b, e in zip(begins, ends, strict=True)
        ]
        in_base, calm = took[np.any(own, axis=0)], took[~np.any(near, axis=0)]
        yield Row(f"{what}: a second", len(took) / (began[-1] - began[0]), "calls")
        p99 = [1e3 * float(np.percentile(part, 99)) for part in (calm, in_base)]
        for when, value, longest in zip(("calm", "base"), p99, (calm, in_base), strict=True):
            yield Row(f"{what}, {when}", value, "ms, p99")
            yield Row(f"{what}, {when}: longest", 1e3 * float(longest.max()), "ms")
        yield Row(f"{what}, p99: base / calm", p99[1] / p99[0], "x", most=2)
    before = [rss[(times >= begin - 3) & (times < begin) & ~has_base].max() for begin in begins]
    most = [
        rss[(times >= b) & (times < e)].max() - was
        for b, e, was in zip(begins, ends, before, strict=True)
    ]
    yield Row("RssAnon: base - before, at most", max(most) / _MIB, "MiB", most=64)
    yield Row("RssAnon: before", float(np.median(before)) / _MIB, "MiB")


def _has_base(server: NoiseServer) -> bool:
    """Whether a base is being written."""
    return any((server.directory / "store").glob("base-*.part"))


def _wait_until_still(path: pathlib.Path) -> None:
    """Waits until all is on disk: no file has changed over some commits."""
    sizes: dict[pathlib.Path, int] = {}
    still_since = began = time.monotonic()
    while (now := time.monotonic()) < still_since + 3 and now < began + _DEADLINE_S:
        before = sizes
        # A base may get another name between the two.
        with contextlib.suppress(FileNotFoundError):
            sizes = {file: file.stat().st_size for file in path.iterdir()}
        if sizes != before:
            still_since = now
        time.sleep(0.1)


def _watch(server: NoiseServer, bases: int) -> list[tuple[float, int, bool]]:
    """Looks at memory and files until there were `bases` more bases, and a calm time after."""
    looks, rss = [], RssAnon(server.server.pid)
    ended, last, ends = 0, False, time.monotonic() + _DEADLINE_S
    while (now := time.monotonic()) < ends:
        has_base = _has_base(server)
        looks.append((now, rss.now(), has_base))
        ended += last and not has_base
        last = has_base
        if ended == bases:
            ends = min(ends, now + 5)
            bases += 1
        time.sleep(_LOOK_S)
    if last or not ended:
        raise RuntimeError(f"no base was finished within {_DEADLINE_S:g} s")
    return looks


@contextlib.contextmanager
def _calls_of(work: Callable[..., None], server: NoiseServer) -> Iterator[Callable[[], np.ndarray]]:
    """Works in another process until the result is asked for: begin and seconds of each call."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(server.server.address, theirs))
    process.start()
    ours.recv()

    def result() -> np.ndarray:
        ours.send("stop")
        return np.array(ours.recv())

    try:
        yield result
    finally:
        process.kill()
        process.join()


def _act(address: str, stops: Any) -> None:
    import reverb

    client, numbers = reverb.Client(address), itertools.count(0, _INSERTED)

    def insert() -> None:
        begin = next(numbers)
        client.insert_batch(_steps(range(begin, begin + _INSERTED)), {"table": 1.0})

    _paced(stops, insert, lambda _: None)


def _learn(address: str, stops: Any) -> None:
    import reverb

    client = reverb.Client(address)
    keys = client.sample_batch("table", 100_000).info.key.reshape(-1)
    rng, at = np.random.default_rng(0), 0

    def sample() -> None:
        nonlocal at
        # Old items leave, so keys are taken from samples.
        keys[at : at + _SAMPLED] = client.sample_batch("table", _SAMPLED).info.key.reshape(-1)
        at = (at + _SAMPLED) % (len(keys) - _SAMPLED)

    def update(tick: int) -> None:
        if tick % 2 == 0:
            picked = rng.choice(keys, _UPDATED).tolist()
            client.mutate_priorities("table", dict.fromkeys(picked, 1.0 + tick % 3))

    _paced(stops, sample, update)


def _paced(stops: Any, timed: Callable[[], None], other: Callable[[int], None]) -> None:
    calls = []
    timed()
    stops.send("begun")
    due = time.monotonic()
    for tick in itertools.count():
        if stops.poll():
            break
        began = time.monotonic()
        timed()
        calls.append((began, time.monotonic() - began))
        other(tick)
        # Who is late does not catch up: that would be a burst.
        due = max(due + _TICK_S, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
    stops.send(calls)
    stops.close()


def recovery_rows(options: Options) -> Iterator[Row]:
    """Starts after a kill, with none of the store's files in the page cache."""
    small = options.size(1_000_000)
    yield from _starts(options, f"{small:,} small items", small, None, _fill, _check_small, 3)
    # 2.1 GB; those of a million are 7 GB.
    stacks = options.size(300_000)
    memory = f"{max(100, stacks * 900 // 1_000_000)}MiB"

    def write(client: Any, items: int) -> None:
        write_stacks(client, range(items))

    yield from _starts(options, f"{stacks:,} stacks", stacks, memory, write, check, 5)


def _check_small(data: Any) -> None:
    numbers, observations = (np.asarray(column) for column in data)
    if not (observations == numbers[..., None]).all():
        raise ValueError("an item came back with other bytes than were written")


def _starts(
    options: Options,
    what: str,
    items: int,
    memory: str | None,
    fill: Callable[[Any, int], None],
    check_data: Callable[[Any], object],
    most_s: float,
) -> Iterator[Row]:
    tables = (TableSpec(max_size=items),)
    with tempfile.TemporaryDirectory(prefix="reverb-store-", dir=options.directory) as directory:
        path = pathlib.Path(directory) / "store"

        def serve() -> contextlib.AbstractContextManager[ServerUnderTest]:
            return open_server("remote", tables, None, memory, str(path), True)

        with serve() as server:
            fill(server.client, items)
            _wait_until_still(path)
        for after in ("a kill", "a base"):
            files = sorted(path.glob("*.seg"))
            sizes = {
                kind: sum(file.stat().st_size for file in files if file.name.startswith(kind))
                for kind in ("data", "base", "log")
            }
            forget_pages(files)
            with serve() as server:
                read = read_from_disk(server.pid)
                rss = RssAnon(server.pid).now()
                held = server.client.server_info()["table"].current_size
                check_data(server.client.sample_batch("table", 32).data)
                _wait_for_base(path, files)
            yield Row(f"{what}, after {after}: start", server.start_s[0], "s", most=most_s)
            yield Row(f"{what}, after {after}: processors", server.start_s[1], "s")
            yield Row(f"{what}, after {after}: items", held, "", least=items)
            yield Row(f"{what}, after {after}: RssAnon", rss / _MIB, "MiB")
            for kind, size in sizes.items():
                yield Row(f"{what}, after {after}: bytes of {kind} files", size / _MIB, "MiB")
            of_all = read / sum(sizes.values())
            limit = 0.05 if memory else None
            yield Row(f"{what}, after {after}: read / all bytes", of_all, "x", most=limit)


def _wait_for_base(path: pathlib.Path, before: list[pathlib.Path]) -> None:
    """Waits for the first base after a start."""
    ends = time.monotonic() + _DEADLINE_S
    while not set(path.glob("base-*.seg")) - set(before):
        if time.monotonic() > ends:
            raise RuntimeError(f"no base was made within {_DEADLINE_S:g} s of a start")
        time.sleep(_LOOK_S)
