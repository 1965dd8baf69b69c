# SPDX-License-Identifier: Apache-2.0
"""Measures what a group of shards costs, in processors' time for an item, beside one server.

    python benchmarks/shards.py
    python benchmarks/shards.py --shards 1 2 4 8 --rounds 9 --seconds 0.5

Servers in processes of their own, one client. More machines are not at hand, so the throughput of
a group cannot be measured here; what an item costs the client, and what it costs all servers, can.
A group scales linearly as long as the latter does not grow. Each case runs with one server through
a plain client and with each group in turn, `--rounds` times; the table shows medians of the ratios
of neighbours. Aimed at, with 8 shards: inserts 1.05, samples 1.15, updates 1.2.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import reverb
import reverb.cluster

_ITEMS = 100_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prints a line for each case and each group."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shards", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--cases", nargs="*", help="substrings of the names of cases")
    parser.add_argument("--serve", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return _serve(*arguments.serve)
    plain = _Servers(1)
    groups = {number: _Servers(number) for number in arguments.shards}
    everything = {"plain": (plain, reverb.Client(plain.addresses[0]))}
    for number, servers in groups.items():
        address = "shards:///" + ",".join(servers.addresses)
        everything[f"{number} shard(s)"] = (servers, reverb.Client(address))
    cases = {name: _cases(client) for name, (_, client) in everything.items()}
    for name, (_, client) in everything.items():
        client.insert_batch([np.zeros((_ITEMS, 4), np.float32)], {"t": np.ones(_ITEMS)})
        for case in cases[name].values():
            case()
    print(f"{'case':28}{'group':12}{'client us':>10}{'ratio':>8}{'servers us':>12}{'ratio':>8}")
    for case in cases["plain"]:
        if arguments.cases and not any(part in case for part in arguments.cases):
            continue
        _compare(case, everything, cases, arguments)
    for servers in [plain, *groups.values()]:
        servers.stop()


def _compare(case: str, everything: dict, cases: dict, arguments: argparse.Namespace) -> None:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in everything}
    for _ in range(arguments.rounds):
        for name, (servers, _) in everything.items():
            times[name].append(_measure(cases[name][case], servers, arguments.seconds))
    for name, measured in times.items():
        ratios = [
            [own[i] / plain[i] for own, plain in zip(measured, times["plain"], strict=True)]
            for i in range(2)
        ]
        client, server = (statistics.median(it[i] for it in measured) * 1e6 for i in range(2))
        client_ratio, server_ratio = map(statistics.median, ratios)
        print(
            f"{case:28}{name:12}{client:10.2f}{client_ratio:8.2f}{server:12.2f}{server_ratio:8.2f}",
            flush=True,
        )


def _measure(call: Callable[[], int], servers: _Servers, seconds: float) -> tuple[float, float]:
    """Processors' time for an item: of this process, and of all servers."""
    call()
    items = 0
    client, server = time.process_time(), servers.cpu_s()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        items += call()
    # The clock of other processes has ticks of 10 ms.
    return (time.process_time() - client) / items, max(servers.cpu_s() - server, 1e-3) / items


class _Servers:
    """Servers in processes of their own."""

    def __init__(self, number: int) -> None:
        command = [sys.executable, __file__, "--serve"]
        self._processes = [
            subprocess.Popen([*command, str(i), str(number)], stdout=subprocess.PIPE, text=True)
            for i in range(number)
        ]
        self.addresses = [
            f"localhost:{int(process.stdout.readline())}"  # type: ignore[union-attr]
            for process in self._processes
        ]

    def cpu_s(self) -> float:
        """CPU time of all processes together."""
        ticks = 0
        for process in self._processes:
            text = pathlib.Path(f"/proc/{process.pid}/stat").read_text()
            ticks += sum(map(int, text.rpartition(") ")[2].split()[11:13]))
        return ticks / _TICKS_PER_S

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def _serve(index: int, number: int) -> None:
    table = reverb.Table(
        "t",
        reverb.selectors.Prioritized(0.6),
        reverb.selectors.Fifo(),
        _ITEMS,
        reverb.rate_limiters.MinSize(1),
    )
    shard = reverb.cluster.Shard(index, number) if number > 1 else None
    server = reverb.Server([table], shard=shard)
    print(server.port, flush=True)
    server.wait()


def _cases(client: reverb.Client) -> dict[str, Callable[[], int]]:
    step = np.zeros(4, np.float32)
    rows = {number: np.zeros((number, 4), np.float32) for number in (256, 4_096)}
    writer = client.trajectory_writer(1)
    known: list[np.ndarray] = []

    def insert_one() -> int:
        client.insert([step], {"t": 1.0})
        return 1

    def insert_batch(number: int) -> int:
        client.insert_batch([rows[number]], {"t": 1.0})
        return number

    def write() -> int:
        for _ in range(256):
            writer.append([step])
            writer.create_item("t", 1.0, [writer.history[0][-1:]])
        writer.flush()
        return 256

    def sample(number: int) -> int:
        client.sample_batch("t", number)
        return number

    def update() -> int:
        keys = client.sample_batch("t", 256).info.key
        client.update_priorities("t", keys, np.ones(256))
        return 256

    def update_only() -> int:
        # Some have left the table since, as in a training.
        if not known:
            known.append(client.sample_batch("t", 256).info.key)
        client.update_priorities("t", known[0], np.ones(256))
        return 256

    return {
        "insert 1": insert_one,
        "insert_batch 256": lambda: insert_batch(256),
        "insert_batch 4,096": lambda: insert_batch(4_096),
        "trajectory writer, 256": write,
        "sample_batch 1": lambda: sample(1),
        "sample_batch 256": lambda: sample(256),
        "sample_batch 2,048": lambda: sample(2_048),
        "update_priorities 256": update_only,
        "sample 256 and update": update,
    }


if __name__ == "__main__":
    main()
