# SPDX-License-Identifier: Apache-2.0
"""Measures `reverb.aio.Client` beside `reverb.Client`, in one process and over loopback TCP.

    python benchmarks/asyncio_client.py
    python benchmarks/asyncio_client.py --seconds 1 --rounds 9

The first table is the time of a call, one after another. The second has `--waiting` calls that
wait for a queue at the same time while a producer inserts: as coroutines of `reverb.aio.Client`, as
calls of `reverb.Client` in as many threads of an executor, and as threads without asyncio. All ways
are measured in turn, `--rounds` times; the tables show medians.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from two_ways import ServerProcess

import reverb
from reverb import aio

_STEP = [np.zeros(4, np.float32), 1.0]


def _tables() -> list[reverb.Table]:
    return [
        reverb.Table(
            "table",
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=1000,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        ),
        reverb.Table.queue("queue", 100_000),
    ]


def _calls(client: Any, keys: np.ndarray) -> dict[str, Callable[[], Any]]:
    return {
        "sample_batch of 1": lambda: client.sample_batch("table", 1),
        "sample_batch of 256": lambda: client.sample_batch("table", 256),
        "update_priorities of 256": lambda: client.update_priorities("table", keys, 1.0),
        "insert": lambda: client.insert(_STEP, {"table": 1.0}),
        "server_info": lambda: client.server_info(),
    }


def _time_of(call: Callable[[], Any], seconds: float) -> float:
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            call()
        count += 10
    return (time.perf_counter() - began) / count * 1e6


async def _time_of_awaited(call: Callable[[], Awaitable[Any]], seconds: float) -> float:
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            await call()
        count += 10
    return (time.perf_counter() - began) / count * 1e6


async def _single_calls(address: str, seconds: float, rounds: int) -> None:
    blocking = reverb.Client(address)
    blocking.reset("table")
    blocking.insert_batch([np.zeros((1000, 4), np.float32), np.ones(1000)], {"table": 1.0})
    keys = blocking.sample_batch("table", 256).info.key
    async with aio.Client(address) as client:
        theirs, ours = _calls(blocking, keys), _calls(client, keys)
        for name in theirs:
            times: list[list[float]] = [[], [], []]
            for _ in range(rounds):
                times[0].append(_time_of(theirs[name], seconds))
                times[1].append(await _time_of_awaited(ours[name], seconds))
                in_thread = theirs[name]
                times[2].append(
                    await _time_of_awaited(lambda it=in_thread: asyncio.to_thread(it), seconds)
                )
            sync, awaited, threaded = (statistics.median(it) for it in times)
            print(
                f"  {name:26} {sync:9.1f} {awaited:9.1f} {threaded:9.1f}   {awaited - sync:+6.1f}"
            )


def _produce(client: reverb.Client, rows: int) -> None:
    for _ in range(rows // 500):
        client.insert_batch([np.zeros((500, 4), np.float32), np.ones(500)], {"queue": 1.0})


async def _coroutines(address: str, waiting: int, calls: int) -> float:
    async with aio.Client(address) as client:

        async def take() -> None:
            for _ in range(calls):
                await client.sample_batch("queue", 1)

        tasks = [asyncio.create_task(take()) for _ in range(waiting)]
        return await _rate(address, tasks, waiting * calls)


async def _to_thread(address: str, waiting: int, calls: int) -> float:
    client = reverb.Client(address)
    loop = asyncio.get_running_loop()
    with concurrent.futures.ThreadPoolExecutor(waiting) as pool:

        async def take() -> None:
            for _ in range(calls):
                await loop.run_in_executor(pool, client.sample_batch, "queue", 1)

        tasks = [asyncio.create_task(take()) for _ in range(waiting)]
        return await _rate(address, tasks, waiting * calls)


async def _rate(address: str, tasks: list[asyncio.Task[None]], total: int) -> float:
    await asyncio.sleep(0.5)
    began = time.perf_counter()
    producer = threading.Thread(target=_produce, args=(reverb.Client(address), total))
    producer.start()
    await asyncio.gather(*tasks)
    seconds = time.perf_counter() - began
    producer.join()
    return total / seconds


def _threads(address: str, waiting: int, calls: int) -> float:
    client = reverb.Client(address)

    def take() -> None:
        for _ in range(calls):
            client.sample_batch("queue", 1)

    threads = [threading.Thread(target=take) for _ in range(waiting)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    began = time.perf_counter()
    _produce(reverb.Client(address), waiting * calls)
    for thread in threads:
        thread.join()
    return waiting * calls / (time.perf_counter() - began)


def _many_calls(address: str, waiting: int, calls: int, rounds: int) -> None:
    ways = {
        "reverb.aio.Client": lambda: asyncio.run(_coroutines(address, waiting, calls)),
        "asyncio and an executor": lambda: asyncio.run(_to_thread(address, waiting, calls)),
        "threads": lambda: _threads(address, waiting, calls),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            rates[name].append(measure())
    for name, values in rates.items():
        print(f"  {name:26} {statistics.median(values):9,.0f} calls/s")


def main() -> None:
    """Prints the tables, for a server of the same process and for one of another process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="for each time of a call")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--waiting", type=int, default=1000, help="calls at the same time")
    parser.add_argument("--calls", type=int, default=20, help="of each of them")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        server = reverb.Server(_tables())
        print(server.port, flush=True)
        server.wait()
        return
    here = reverb.Server(_tables())
    with ServerProcess([__file__, "--serve"]) as there:
        for name, port in (("in one process", here.port), ("over TCP", there.port)):
            address = f"127.0.0.1:{port}"
            print(f"{name}, microseconds a call: blocking, awaited, to_thread; awaited - blocking")
            asyncio.run(_single_calls(address, arguments.seconds, arguments.rounds))
            print(f"{name}, {arguments.waiting} calls that wait at the same time")
            _many_calls(address, arguments.waiting, arguments.calls, arguments.rounds)


if __name__ == "__main__":
    main()
