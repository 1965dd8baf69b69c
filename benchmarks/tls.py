# SPDX-License-Identifier: Apache-2.0
"""Measures what TLS costs, beside the same calls in cleartext.

    python benchmarks/tls.py
    python benchmarks/tls.py --seconds 1 --rounds 15

Two servers in processes of their own, one with a certificate and one without. Each case runs on
both in turn, `--rounds` times; the table shows medians, and the median of the ratios of neighbours.
Small items should reach 0.9 of cleartext, items of 400 kB 0.5. "CPU" is the time of processors, of
client and server together, beside that of cleartext. The last line is the time of a connection with
everything that belongs to it.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

import reverb
from reverb.core import native

_SMALL = np.zeros(4, np.float32)
_LARGE_BYTES = 400_000
_BATCH = 256
_LARGE_BATCH = 8
_ITEMS = 1_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_Case = Callable[[], int]


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--serve", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        return _serve(*arguments.serve)
    with tempfile.TemporaryDirectory() as directory:
        native.self_signed(directory, ["localhost"], 1)
        tls = reverb.ClientTls(ca=pathlib.Path(directory, "ca.crt"))
        with _Server([]) as clear, _Server([directory]) as encrypted:
            clients = (
                reverb.Client(f"localhost:{clear.port}"),
                reverb.Client(f"grpcs://localhost:{encrypted.port}", tls=tls),
            )
            _compare(clients, (clear, encrypted), arguments)
            _connect(clear.port, encrypted.port, tls)


class _Server:
    """A server in a process of its own."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, __file__, "--serve", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> _Server:
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


def _serve(directory: str | None = None) -> None:
    tls = None
    if directory is not None:
        files = pathlib.Path(directory)
        tls = reverb.ServerTls(cert=files / "tls.crt", key=files / "tls.key")
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
    server = reverb.Server(tables, tls=tls)
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


def _compare(
    clients: tuple[reverb.Client, ...], servers: tuple[_Server, ...], arguments: argparse.Namespace
) -> None:
    cases = [_cases(client) for client in clients]
    print(f"{'case':20} {'cleartext/s':>12} {'TLS/s':>12} {'ratio':>6} {'CPU':>6}")
    for name in cases[0]:
        # The first round is the warm-up.
        pairs = list(zip((case[name] for case in cases), servers, strict=True))
        rounds = [
            [_measure(case, server, arguments.seconds) for case, server in pairs]
            for _ in range(arguments.rounds + 1)
        ][1:]
        rates = [statistics.median(pair[at][0] for pair in rounds) for at in (0, 1)]
        ratio = statistics.median(second[0] / first[0] for first, second in rounds)
        cpu = statistics.median(second[1] / first[1] for first, second in rounds)
        print(f"{name:20} {rates[0]:12,.0f} {rates[1]:12,.0f} {ratio:6.2f} {cpu:6.2f}")


def _measure(case: _Case, server: _Server, seconds: float) -> tuple[float, float]:
    """Items a second, and the time of processors for an item."""
    cpu = time.process_time() + server.cpu_s()
    done, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        done += case()
    return done / took, (time.process_time() + server.cpu_s() - cpu) / done


def _connect(clear: int, encrypted: int, tls: reverb.ClientTls) -> None:
    def first_call(address: str, tls: reverb.ClientTls | None) -> float:
        client = reverb.Client(address, tls=tls)
        began = time.perf_counter()
        client.server_info()
        return 1e3 * (time.perf_counter() - began)

    rounds = range(50)
    without = statistics.median(first_call(f"localhost:{clear}", None) for _ in rounds)
    with_tls = statistics.median(first_call(f"grpcs://localhost:{encrypted}", tls) for _ in rounds)
    print(f"first call of a client: {without:.2f} ms in cleartext, {with_tls:.2f} ms with TLS")


if __name__ == "__main__":
    main()
