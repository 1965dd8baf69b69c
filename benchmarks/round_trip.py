# SPDX-License-Identifier: Apache-2.0
"""Measures what one call costs, by every way to a server, beside the floor of the machine.

    cargo build --release --package round-trip-floor
    python benchmarks/round_trip.py
    python benchmarks/round_trip.py --rounds 15 --ways floor tcp unix

One client, one call at a time, servers in processes of their own. "bare TCP" and "bare HTTP/2" are
echoes of 200 bytes (`tools/floor`), each end with one thread; "here" is a server in the
client's process. All of them are measured in turn, `--rounds` times. The table shows medians of the
rounds: the median and the 99th percentile of a call, the time of processors of both ends, and how
often a thread of the client waited, all for one call; and how many sockets the client has open.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from two_ways import ServerProcess

import reverb
import reverb.cluster
from reverb.core import native

_ROOT = pathlib.Path(__file__).parents[1]
_FLOOR = _ROOT / "target" / "release" / "round-trip-floor"
_WAYS = ("floor", "here", "tcp", "unix", "tls", "group")
_BYTES = 200
_ITEMS = 10_000
_UPDATES = 256

Figures = tuple[float, ...]


def main() -> None:
    """Prints a line for each call and way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=3_000, help="in each measurement")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ways", nargs="*", default=_WAYS, choices=_WAYS)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        return _serve(*arguments.serve)
    with contextlib.ExitStack() as stack:
        measured = {}
        for way in arguments.ways:
            opened = _open_floor(stack) if way == "floor" else _open(way, stack)
            measured |= {(case, name): measure for name, case, measure in opened}
        rounds: dict[tuple[str, str], list[Figures]] = {key: [] for key in measured}
        # The first round is the warm-up.
        for _ in range(arguments.rounds + 1):
            for key, measure in measured.items():
                rounds[key].append(measure(arguments.calls))
        print(f"{platform.platform()}, {os.cpu_count()} processors")
        print(
            f"{'call':18}{'way':12}{'p50 us':>8}{'p99 us':>8}{'client us':>11}{'server us':>11}"
            f"{'waits':>7}{'sockets':>9}"
        )
        for (case, way), figures in sorted(rounds.items(), key=lambda row: row[0][0]):
            p50, p99, client, server, waits, sockets = map(
                statistics.median, zip(*figures[1:], strict=True)
            )
            print(
                f"{case:18}{way:12}{p50:8.1f}{p99:8.1f}{client:11.1f}{server:11.1f}"
                f"{waits:7.2f}{sockets:9.0f}"
            )


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e6
    return float(p50), float(p99)


def _open_floor(stack: contextlib.ExitStack) -> Iterator[tuple[str, str, Callable]]:
    """Starts the server of the echoes; yields way, call, and how it is measured."""
    server = subprocess.Popen(
        [_FLOOR, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.callback(server.communicate)
    assert server.stdout
    for protocol, port in zip(("tcp", "h2"), server.stdout.readline().split(), strict=True):

        def measure(calls: int, protocol: str = protocol, port: str = port) -> Figures:
            command = [_FLOOR, "call", protocol, port, str(_BYTES), str(calls)]
            before, cpu = resource.getrusage(resource.RUSAGE_CHILDREN), _cpu_s(server.pid)
            output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            client = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            waits = after.ru_nvcsw - before.ru_nvcsw
            per_call = 1e6 / calls
            return (
                *_percentiles([1e-9 * int(line) for line in output.split()]),
                client * per_call,
                (_cpu_s(server.pid) - cpu) * per_call,
                waits / calls,
                1,
            )

        yield {"tcp": "bare TCP", "h2": "bare HTTP/2"}[protocol], "echo", measure


def _open(way: str, stack: contextlib.ExitStack) -> Iterator[tuple[str, str, Callable]]:
    """Starts servers and a client; yields way, call, and how it is measured."""
    directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    sockets = _sockets()
    if way == "here":
        server = reverb.Server(_tables())
        stack.callback(server.stop)
        servers, client = [], server.localhost_client()
    else:
        number = 3 if way == "group" else 1
        native.self_signed(str(directory), ["localhost"], 1)
        servers = [
            stack.enter_context(
                ServerProcess([__file__, "--serve", way, str(directory), str(i), str(number)])
            )
            for i in range(number)
        ]
        tls = reverb.ClientTls(ca=directory / "ca.crt") if way == "tls" else None
        client = reverb.Client(_address(way, directory, servers), tls=tls)
    cases = _calls(client)
    for call in cases.values():
        call()
    opened = _sockets() - sockets
    for case, call in cases.items():

        def measure(calls: int, call: Callable[[], object] = call) -> Figures:
            times = np.empty(calls)
            cpu = sum(_cpu_s(server.pid) for server in servers)
            client_cpu, waits = time.process_time(), _waits()
            for i in range(calls):
                began = time.perf_counter()
                call()
                times[i] = time.perf_counter() - began
            client_cpu, waits = time.process_time() - client_cpu, _waits() - waits
            cpu = sum(_cpu_s(server.pid) for server in servers) - cpu
            per_call = 1e6 / calls
            p50, p99 = _percentiles(times)
            return p50, p99, client_cpu * per_call, cpu * per_call, waits / calls, opened

        yield way, case, measure


def _address(way: str, directory: pathlib.Path, servers: Sequence[ServerProcess]) -> str:
    if way == "unix":
        return f"unix:{directory / 'reverb'}"
    addresses = ",".join(f"localhost:{server.port}" for server in servers)
    return {"tls": "grpcs://", "group": "shards:///"}.get(way, "") + addresses


def _tables() -> list[reverb.Table]:
    # Inserts go to one of them, so that the items of the other stay.
    return [
        reverb.Table(
            name,
            reverb.selectors.Prioritized(0.6),
            reverb.selectors.Fifo(),
            _ITEMS,
            reverb.rate_limiters.MinSize(1),
        )
        for name in ("inserts", "samples")
    ]


def _serve(way: str, directory: str, index: str, number: str) -> None:
    files = pathlib.Path(directory)
    tls = reverb.ServerTls(cert=files / "tls.crt", key=files / "tls.key") if way == "tls" else None
    shard = reverb.cluster.Shard(int(index), int(number)) if way == "group" else None
    server = reverb.Server(
        _tables(), tls=tls, shard=shard, unix_path=files / "reverb" if way == "unix" else None
    )
    print(server.port, flush=True)
    server.wait()


def _calls(client: reverb.Client) -> dict[str, Callable[[], object]]:
    # 200 bytes.
    step = np.zeros(_BYTES // 4, np.float32)
    client.insert_batch([np.stack([step] * _ITEMS)], {"samples": np.ones(_ITEMS)})
    writer = client.trajectory_writer(1)

    def write() -> None:
        writer.append([step])
        writer.create_item("inserts", 1.0, [writer.history[0][-1:]])
        writer.flush()

    keys = np.unique(client.sample_batch("samples", 4 * _UPDATES).info.key)[:_UPDATES]
    random = np.random.default_rng(0)
    priorities = [random.uniform(0.1, 10, len(keys)) for _ in range(16)]
    given = itertools.cycle(priorities)

    def update() -> None:
        client.update_priorities("samples", keys, next(given))

    return {
        "insert": lambda: client.insert([step], {"inserts": 1.0}),
        "writer, flush": write,
        "sample": lambda: next(iter(client.sample("samples", 1))),
        "sample_batch(32)": lambda: client.sample_batch("samples", 32),
        "256 updates": update,
        "server_info": client.server_info,
    }


def _cpu_s(pid: int) -> float:
    text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    user, system = text.rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _waits() -> int:
    """How often a thread of this process gave up its processor, to wait."""
    total = 0
    for status in pathlib.Path("/proc/self/task").glob("*/status"):
        with contextlib.suppress(OSError):
            total += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


def _sockets() -> int:
    """The number of sockets that this process has open."""
    links = []
    for file in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(file.readlink()))
    return sum(link.startswith("socket:") for link in links)


if __name__ == "__main__":
    main()
