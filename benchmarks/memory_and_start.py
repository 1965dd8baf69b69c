# SPDX-License-Identifier: Apache-2.0
"""Measures memory of stacks of noise, checkpoints of a small server, the import, and new memory.

    python benchmarks/memory_and_start.py                 # all four, a minute
    python benchmarks/memory_and_start.py stacks growth
    python benchmarks/memory_and_start.py import --python .venvs/tf-2.21/bin/python

Each repeat is a process of its own. `stacks`: 200,000 items of five overlapping frames of noise,
each frame stored once (1.5 GB). `checkpoint`: the saves of a server with one small item. `import`:
`import reverb` after TensorFlow where it is installed, else after NumPy. `growth`: items of 400 kB
into a table that grows, then into the same table when it is full and evicts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import reverb

Figures = dict[str, float]

_STACK = 5
_FRAME = (84, 84)
_STACKS = 200_000
_SAVES = 20
_LARGE_LENGTH = 100_000
_LARGE_ITEMS = 5_000
_LARGE_SOURCES = 200


def main() -> None:
    """Prints a line for each figure: median, least and most."""
    parser = argparse.ArgumentParser(description="Prints figures of memory and start.")
    parser.add_argument("case", nargs="*", choices=[*_CASES, []], default=[], help="all by default")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        server = _server(_STACKS)
        print(server.port, flush=True)
        return server.wait()
    if arguments.once:
        print(json.dumps(_CASES[arguments.case[0]]()))
        return
    for name in arguments.case or _CASES:
        repeats = 7 * arguments.repeats if name == "import" else arguments.repeats
        runs = [_once(arguments.python, name) for _ in range(repeats)]
        for figure in runs[0]:
            values = [run[figure] for run in runs]
            least, most = min(values), max(values)
            print(f"{figure:56}{statistics.median(values):12,.5g}   ({least:,.5g} to {most:,.5g})")


def _once(python: str, name: str) -> Figures:
    command = [python, __file__, name, "--once"]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    # Libraries may log lines before it.
    return json.loads(run.stdout.splitlines()[-1])


def _stacks() -> Figures:
    # Here, because it imports `reverb`, which is measured too.
    from two_ways import ServerProcess

    import reverb

    server = _server(_STACKS)
    client = reverb.Client(f"localhost:{server.port}")
    figures = _stacks_of(client, "in process")
    server.stop()
    with ServerProcess([__file__, "--serve"]) as remote:
        return figures | _stacks_of(reverb.Client(f"localhost:{remote.port}"), "remote")


def _stacks_of(client: reverb.Client, where: str) -> Figures:
    frames = np.random.default_rng(0).integers(0, 256, (1_000, *_FRAME), dtype=np.uint8)

    def write(count: int) -> None:
        with client.trajectory_writer(_STACK) as writer:
            for step in range(count + _STACK - 1):
                # All differ, because the noise moves on with every round.
                frame = np.roll(frames[step % len(frames)], step // len(frames))
                writer.append({"frame": frame})
                if step >= _STACK - 1:
                    stack = {"frame": writer.history["frame"][-_STACK:]}
                    writer.create_item("table", 1.0, stack)
            writer.flush()

    # The memory of threads, connections and code does not belong to the items.
    write(_STACKS // 100)
    client.reset("table")
    before = client.status()
    write(_STACKS)
    status = client.status()
    counted = status.memory.total - before.memory.total
    resident = status.process.resident_bytes - before.process.resident_bytes
    return {
        f"stacks of noise, {where}, counted: bytes an item": counted / _STACKS,
        f"stacks of noise, {where}, resident: bytes an item": resident / _STACKS,
        f"stacks of noise, {where}, resident / counted": resident / counted,
    }


def _checkpoint() -> Figures:
    import reverb

    with tempfile.TemporaryDirectory() as directory:
        server = reverb.Server(
            [reverb.Table.queue("queue", max_size=10)],
            checkpointer=reverb.checkpointers.DefaultCheckpointer(directory),
        )
        client = server.localhost_client()
        client.insert([np.zeros(4, np.float32)], {"queue": 1.0})
        client.checkpoint()
        seconds = [_seconds(client.checkpoint) for _ in range(_SAVES)]
        server.stop()
    return {"checkpoint of an almost empty server: ms": 1e3 * statistics.median(seconds)}


def _import() -> Figures:
    try:
        import tensorflow  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        before = "NumPy"
    else:
        before = "TensorFlow"

    def load() -> None:
        import reverb  # noqa: F401

    return {f"import reverb after {before}: ms": 1e3 * _seconds(load)}


def _server(max_size: int) -> reverb.Server:
    import reverb

    table = reverb.Table(
        "table",
        reverb.selectors.Uniform(),
        reverb.selectors.Fifo(),
        max_size,
        reverb.rate_limiters.MinSize(1),
    )
    return reverb.Server([table])


def _growth() -> Figures:
    import reverb

    server = _server(_LARGE_ITEMS)
    client = reverb.Client(f"localhost:{server.port}", compression="none")
    # More than a processor's caches hold.
    shape = (_LARGE_SOURCES, _LARGE_LENGTH)
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    writer = client.trajectory_writer(1)

    def write() -> None:
        for i in range(_LARGE_ITEMS):
            writer.append({"values": values[i % _LARGE_SOURCES]})
            writer.create_item("table", 1.0, {"values": writer.history["values"][-1:]})
        writer.flush()

    written = values[0].nbytes * _LARGE_ITEMS
    growing, full = (written / 1e9 / _seconds(write) for _ in range(2))
    memory = np.empty(written, np.uint8)
    fresh = written / 1e9 / _seconds(lambda: memory.fill(1))
    writer.close()
    server.stop()
    return {
        "400 kB items, a growing table: GB/s": growing,
        "400 kB items, a full table: GB/s": full,
        "NumPy fills new memory: GB/s": fresh,
    }


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


_CASES: dict[str, Callable[[], Figures]] = {
    "stacks": _stacks,
    "checkpoint": _checkpoint,
    "import": _import,
    "growth": _growth,
}


if __name__ == "__main__":
    main()
