# SPDX-License-Identifier: Apache-2.0
"""The same calls over two ways to a server, in turn: rates, latencies, and time of processors."""

from __future__ import annotations

import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

import reverb

_SMALL = np.zeros(4, np.float32)
_LARGE_BYTES = 400_000
_BATCH = 256
_LARGE_BATCH = 8
_ITEMS = 1_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_Case = Callable[[], int]


class ServerProcess:
    """A server in a process of its own: the program of `command`, which calls `serve`.

    Attributes:
      pid: Its process.
      port: Its port.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def __enter__(self) -> ServerProcess:
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())
        return self

    def cpu_s(self) -> float:
        """Time of processors that it has used."""
        text = pathlib.Path(f"/proc/{self._process.pid}/stat").read_text()
        user, system = text.rpartition(") ")[2].split()[11:13]
        return (int(user) + int(system)) / _TICKS_PER_S

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()


def serve(tls: reverb.ServerTls | None = None, unix_path: pathlib.Path | None = None) -> None:
    """Serves the tables of the cases, until the process is killed."""
    tables = [
        reverb.Table(
            name,
            reverb.selectors.Uniform(),
            reverb.selectors.Fifo(),
            _ITEMS,
            reverb.rate_limiters.MinSize(1),
        )
        for name in ("small", "large")
    ]
    server = reverb.Server(tables, tls=tls, unix_path=unix_path)
    print(server.port, flush=True)
    server.wait()


def _cases(client: reverb.Client) -> dict[str, _Case]:
    # Noise does not compress, so all bytes travel.
    noise = np.random.default_rng(0).integers(0, 255, _LARGE_BYTES, np.uint8)
    large = np.stack([noise] * _LARGE_BATCH)
    small = np.stack([_SMALL] * _BATCH)

    def insert_one() -> int:
        client.insert([_SMALL], {"small": 1.0})
        return 1

    def insert_batch() -> int:
        client.insert_batch([small], {"small": 1.0})
        return _BATCH

    def sample_one() -> int:
        client.sample_batch("small", 1)
        return 1

    def sample_batch() -> int:
        client.sample_batch("small", _BATCH)
        return _BATCH

    def insert_large() -> int:
        client.insert_batch([large], {"large": 1.0})
        return _LARGE_BATCH

    def sample_large() -> int:
        client.sample_batch("large", _LARGE_BATCH)
        return _LARGE_BATCH

    return {
        "insert, one small": insert_one,
        "insert, 256 small": insert_batch,
        "sample, one small": sample_one,
        "sample, 256 small": sample_batch,
        "insert, 400 kB": insert_large,
        "sample, 400 kB": sample_large,
    }


def compare(
    names: tuple[str, str],
    clients: tuple[reverb.Client, reverb.Client],
    servers: tuple[ServerProcess, ServerProcess],
    *,
    seconds: float,
    rounds: int,
) -> None:
    """Prints a line for each case: medians of items a second and of microseconds for a call.

    The ratios are those of the second way to the first, medians over neighbours.

    Args:
      names: Names of the two ways.
      clients: A client of each way.
      servers: The server of each client.
      seconds: Duration of each measurement.
      rounds: Number of measurements of each case and way.
    """
    first, second = names
    print(
        f"{'case':18} {f'{first}/s':>12} {f'{second}/s':>12} {'ratio':>6} {'CPU':>6} "
        f"{f'{first} us':>14} {f'{second} us':>14} {'ratio':>6}"
    )
    cases = [_cases(client) for client in clients]
    for name in cases[0]:
        # The first round is the warm-up.
        pairs = list(zip((case[name] for case in cases), servers, strict=True))
        measured = [
            [_measure(case, server, seconds) for case, server in pairs] for _ in range(rounds + 1)
        ][1:]
        rates, latencies = (
            [statistics.median(pair[at][what] for pair in measured) for at in (0, 1)]
            for what in (0, 2)
        )
        ratio, cpu, latency = (
            statistics.median(pair[1][what] / pair[0][what] for pair in measured)
            for what in range(3)
        )
        print(
            f"{name:18} {rates[0]:12,.0f} {rates[1]:12,.0f} {ratio:6.2f} {cpu:6.2f} "
            f"{latencies[0]:14,.1f} {latencies[1]:14,.1f} {latency:6.2f}"
        )


def _measure(case: _Case, server: ServerProcess, seconds: float) -> tuple[float, float, float]:
    """Items a second, the time of processors for an item, and the median of a call in us."""
    cpu = time.process_time() + server.cpu_s()
    done, calls, began = 0, [], time.perf_counter()
    end = now = began
    while now - began < seconds:
        done += case()
        end, now = now, time.perf_counter()
        calls.append(now - end)
    used = time.process_time() + server.cpu_s() - cpu
    return done / (now - began), used / done, 1e6 * statistics.median(calls)


def first_call_ms(make: Callable[[], reverb.Client], repeats: int = 50) -> float:
    """The median time of the first call of a client, with a connection and all that belongs to it.

    Args:
      make: Makes a client.
      repeats: How many clients are made.
    """

    def first_call() -> float:
        client = make()
        began = time.perf_counter()
        client.server_info()
        return 1e3 * (time.perf_counter() - began)

    return statistics.median(first_call() for _ in range(repeats))
