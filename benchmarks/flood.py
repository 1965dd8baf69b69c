# SPDX-License-Identifier: Apache-2.0
"""Measures what a peer that floods the server with chunks costs a legal writer.

    python benchmarks/flood.py
    python benchmarks/flood.py --megabytes-per-s 150 --seconds 8 --repeats 5

A probe inserts one small item after the other and waits for each confirmation. Beside it runs

* none: no peer,
* legal: a writer of items of 400 kB, whose table is full, so that memory is used again,
* filling: the same writer while its table still grows, so that all memory comes from the system,
* flood: chunks of the same size at the same rate that no item refers to; the peer connects again
  when the server ends its stream.

The server has no limit of memory, or `--max-mib`. Server, probe and peer are processes of their
own. All cases run in turn, `--repeats` times; the table shows medians, and each 99th percentile
beside that of the legal peer. A flood should at most double it. A flood into a server without a
limit takes new memory, as filling a table does, so there "filling" is what it compares with.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

_CHUNK_BYTES = 400_000
_METHOD = "/deepmind.reverb.ReverbService/InsertStream"
# The table of the legal peer is full after half of this, so that it has to free items too.
_WARM_UP_BYTES = 400_000_000
_TABLE_ITEMS = _WARM_UP_BYTES // 2 // _CHUNK_BYTES
_PEERS = ("none", "legal", "filling", "flood")


def main() -> None:
    """Prints one line for each pair of a server and a peer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes-per-s", type=float, default=100, help="of the peer")
    parser.add_argument("--seconds", type=float, default=8, help="for each measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-mib", type=int, default=512, help="of the server with a limit")
    parser.add_argument("--peer", choices=_PEERS, action="append", help="only these")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        role, *options = arguments.role.split()
        return {"serve": _serve, "send": _send, "probe": _probe}[role](*options)
    peers = arguments.peer or _PEERS
    servers = {"no limit": "0", f"{arguments.max_mib} MiB": str(arguments.max_mib)}
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(arguments.repeats):
        for server, peer in itertools.product(servers, peers):
            figures = _measure(servers[server], peer, arguments)
            results.setdefault((server, peer), []).append(figures)
    _report(results)


def _report(results: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    names = ("p50_ms", "p99_ms", "peer_mb_per_s", "streams_ended")
    medians = {
        key: {name: statistics.median(each[name] for each in runs) for name in names}
        for key, runs in results.items()
    }
    runs_width = max(18, 7 * max(map(len, results.values())) + 2)
    titles = ["p50 ms", "p99 ms", "of legal", "MB/s", "ended"]
    print(f"{'server':12}{'peer':8}" + "".join(f"{title:>10}" for title in titles), end="")
    print(f"{'p99 of each run':>{runs_width}}")
    for (server, peer), figures in medians.items():
        legal = medians.get((server, "legal"), {}).get("p99_ms")
        cells = [
            f"{figures['p50_ms']:.2f}",
            f"{figures['p99_ms']:.2f}",
            f"{figures['p99_ms'] / legal:.2f}" if legal else "",
            f"{figures['peer_mb_per_s']:.0f}",
            f"{figures['streams_ended']:.0f}",
        ]
        print(f"{server:12}{peer:8}" + "".join(f"{cell:>10}" for cell in cells), end="")
        runs = "".join(f"{each['p99_ms']:7.2f}" for each in results[server, peer])
        print(f"{runs:>{runs_width}}")


def _measure(max_mib: str, peer: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Runs one server, one peer and the probe."""
    figures = {"peer_mb_per_s": 0.0, "streams_ended": 0.0}
    with _Role("serve", max_mib) as server:
        port = server.line()
        sender = _Role("send", port, peer, str(arguments.megabytes_per_s))
        with sender:
            sender.line()  # It is warm.
            with _Role("probe", port, str(arguments.seconds)) as probe:
                figures |= json.loads(probe.line())
            sender.end_input()
            figures |= json.loads(sender.line())
    return figures


class _Role:
    """This file as another process; it ends with its input."""

    def __init__(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--role", " ".join(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> _Role:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        return line.strip()

    def end_input(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()


def _serve(max_mib: str) -> None:
    """Serves a table for the probe and one for the peer."""
    import reverb

    def table(name: str, size: int) -> reverb.Table:
        fifo = reverb.selectors.Fifo
        return reverb.Table(name, fifo(), fifo(), size, reverb.rate_limiters.MinSize(1))

    max_bytes = int(max_mib) * 2**20 or None
    tables = [table("small", 100_000), table("large", _TABLE_ITEMS), table("endless", 10**6)]
    server = reverb.Server(tables, host="127.0.0.1", max_bytes=max_bytes)
    print(server.port, flush=True)
    sys.stdin.read()


def _probe(port: str, seconds: str) -> None:
    """Inserts small items, and prints percentiles of the time until each was confirmed."""
    import reverb

    # Another address than localhost, which might find a server in this process.
    writer = reverb.Client(f"127.0.0.1:{port}").trajectory_writer(1)
    step = {"observation": np.zeros(4, np.float32), "action": np.int32(1)}
    times_s = []
    began = time.perf_counter()
    warm_at, end_at = began + 0.5, began + 0.5 + float(seconds)
    while (now := time.perf_counter()) < end_at:
        writer.append(step)
        trajectory = {name: writer.history[name][-1:] for name in step}
        writer.create_item("small", 1.0, trajectory)
        writer.flush()
        if now > warm_at:
            times_s.append(time.perf_counter() - now)
    p50, p99 = np.percentile(times_s, [50, 99]) * 1000
    print(json.dumps({"p50_ms": p50, "p99_ms": p99}), flush=True)


def _send(port: str, kind: str, megabytes_per_s: str) -> None:
    """Sends chunks at a rate, with items or without, until the input ends."""
    if kind == "none":
        print("warm", flush=True)
        sys.stdin.read()
        print("{}", flush=True)
        return
    table = {"legal": "large", "filling": "endless", "flood": None}[kind]
    sender = _Sender(int(port), table, rate=float(megabytes_per_s) * 1e6)
    threading.Thread(target=sender.run, daemon=True).start()
    while sender.sent_bytes < _WARM_UP_BYTES:
        time.sleep(0.01)
    began, sent, ended = time.perf_counter(), sender.sent_bytes, sender.streams_ended
    print("warm", flush=True)
    sys.stdin.read()
    rate = (sender.sent_bytes - sent) / 1e6 / (time.perf_counter() - began)
    ended = sender.streams_ended - ended
    print(json.dumps({"peer_mb_per_s": rate, "streams_ended": ended}), flush=True)


class _Sender:
    """A peer that makes its messages by hand, and opens a stream whenever it has none."""

    def __init__(self, port: int, table: str | None, rate: float) -> None:
        self.sent_bytes = 0
        self.streams_ended = 0
        self._port = port
        self._table = table
        self._seconds_each = _CHUNK_BYTES / rate
        self._payload = np.random.default_rng(0).bytes(_CHUNK_BYTES)
        self._keys = itertools.count(1)
        self._due_at = time.perf_counter()

    def run(self) -> None:
        import grpc

        options = [("grpc.max_send_message_length", -1)]
        while True:
            with grpc.insecure_channel(f"127.0.0.1:{self._port}", options=options) as channel:
                call = channel.stream_stream(_METHOD)(self._messages())
                try:
                    for _ in call:
                        pass
                except grpc.RpcError as error:
                    if not self._is_expected(error):
                        raise
            self.streams_ended += 1

    def _is_expected(self, error: Any) -> bool:
        import grpc

        ends = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        return self._table is None and error.code() in ends

    def _messages(self) -> Iterator[bytes]:
        while True:
            yield self._message(next(self._keys))
            self.sent_bytes += _CHUNK_BYTES
            # Late messages are caught up, but at most a tenth of a second of them.
            self._due_at = max(self._due_at + self._seconds_each, time.perf_counter() - 0.1)
            time.sleep(max(0.0, self._due_at - time.perf_counter()))

    def _message(self, key: int) -> bytes:
        from reverb.core import protos

        message = protos.InsertStreamRequest()
        chunk = message.chunks.add(chunk_key=key, data_tensors_len=1)
        chunk.sequence_range.episode_id = 1
        # An uint8 of shape [1, 400,000] as one literal of snappy, which is not worth compressing.
        tensor = chunk.data.tensors.add(dtype=4)
        for size in (1, _CHUNK_BYTES):
            tensor.tensor_shape.dim.add(size=size)
        literal = b"\x80\xb5\x18" + b"\xf8" + (_CHUNK_BYTES - 1).to_bytes(3, "little")
        tensor.tensor_content = literal + self._payload
        if self._table:
            item = message.items.add(key=key, table=self._table, priority=1.0)
            column = item.flat_trajectory.columns.add()
            column.chunk_slices.add(chunk_key=key, offset=0, length=1, index=0)
        return message.SerializeToString()


if __name__ == "__main__":
    main()
