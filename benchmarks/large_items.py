# SPDX-License-Identifier: Apache-2.0
"""Measures items of 400 kB from another process, beside the sockets that they come through.

    python benchmarks/large_items.py
    python benchmarks/large_items.py --seconds 1 --rounds 9

A server in a process of its own has 200 items of noise, and listens on loopback TCP and on a Unix
socket. Another process writes zeros into plain sockets of both kinds, 1 MiB at a time; they are
received into memory that is used again, as batches with `out=` are. The cases run in turn,
`--rounds` times; the table shows medians in GB/s, the least and the largest.
"""

from __future__ import annotations

import argparse
import pathlib
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable

import numpy as np
from two_ways import ServerProcess

import reverb

_ITEM_BYTES = 400_000
_ITEMS = 200
_BATCH = 32
_PIECE = 1 << 20


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        return _serve(arguments.serve)
    if arguments.write is not None:
        return _write(arguments.write)
    with tempfile.TemporaryDirectory() as directory:
        path, plain = pathlib.Path(directory) / "reverb", pathlib.Path(directory) / "plain"
        server = ServerProcess([__file__, "--serve", str(path)])
        writer = ServerProcess([__file__, "--write", str(plain)])
        with server, writer:
            cases = {
                "a TCP socket": _socket(("127.0.0.1", writer.port)),
                "a Unix socket": _socket(str(plain)),
            }
            for way, address in ("TCP", f"127.0.0.1:{server.port}"), ("Unix", f"unix:{path}"):
                client = reverb.Client(address)
                cases[f"client.sample, {way}"] = _sample(client)
                cases[f"sample_batch({_BATCH}), {way}"] = _sample_batch(client)
                cases[f"sample_batch({_BATCH}, out=), {way}"] = _sample_batch(client, again=True)
            rates: dict[str, list[float]] = {name: [] for name in cases}
            for _ in range(arguments.rounds):
                for name, call in cases.items():
                    rates[name].append(_rate(call, arguments.seconds))
    for name, found in rates.items():
        least, most = min(found), max(found)
        print(f"{name:32} {statistics.median(found):5.2f} GB/s   ({least:.2f} to {most:.2f})")


def _rate(call: Callable[[], int], seconds: float) -> float:
    call()
    started, received = time.perf_counter(), 0
    while time.perf_counter() < started + seconds:
        received += call()
    return received / (time.perf_counter() - started) / 1e9


def _socket(address: str | tuple[str, int]) -> Callable[[], int]:
    kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    peer = socket.socket(kind, socket.SOCK_STREAM)
    peer.connect(address)
    memory = memoryview(bytearray(_BATCH * _ITEM_BYTES))

    def receive() -> int:
        got = 0
        while got < len(memory):
            got += peer.recv_into(memory[got : got + _PIECE])
        return got

    return receive


def _sample(client: reverb.Client) -> Callable[[], int]:
    def sample() -> int:
        samples = client.sample("table", _BATCH, emit_timesteps=False)
        return sum(sample.data[0].nbytes for sample in samples)

    return sample


def _sample_batch(client: reverb.Client, again: bool = False) -> Callable[[], int]:
    out = client.sample_batch("table", _BATCH) if again else None
    return lambda: client.sample_batch("table", _BATCH, out=out).data[0].nbytes


def _serve(path: pathlib.Path) -> None:
    """Serves the items, until the process is killed."""
    selectors = reverb.selectors.Uniform(), reverb.selectors.Fifo()
    table = reverb.Table("table", *selectors, _ITEMS, reverb.rate_limiters.MinSize(1))
    server = reverb.Server([table], unix_path=path)
    noise = np.random.default_rng(0).integers(0, 255, (_ITEMS, _ITEM_BYTES), np.uint8)
    server.localhost_client().insert_batch([noise], {"table": 1.0})
    print(server.port, flush=True)
    server.wait()


def _write(path: pathlib.Path) -> None:
    """Writes zeros to whoever connects, by TCP and by a Unix socket, until it is killed."""
    by_tcp = socket.create_server(("127.0.0.1", 0))
    by_path = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    by_path.bind(str(path))
    by_path.listen()
    print(by_tcp.getsockname()[1], flush=True)
    readers = [listener.accept()[0] for listener in (by_tcp, by_path)]
    for reader in readers:
        threading.Thread(target=_write_to, args=[reader]).start()


def _write_to(reader: socket.socket) -> None:
    piece = bytes(_PIECE)
    while True:
        reader.sendall(piece)


if __name__ == "__main__":
    main()
