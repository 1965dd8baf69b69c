# SPDX-License-Identifier: Apache-2.0
"""Measures stacks of frames in this process, compressed or not, beside buffers that are memory.

    python benchmarks/frame_stacks.py               # NumPy; cpprb where installed
    python benchmarks/frame_stacks.py --python old=other/bin/python --repeats 5
    python benchmarks/frame_stacks.py --busy        # A learner keeps another processor busy.

An item has five frames of uint8[84, 84], each stored once, an int32 and a float32; a table has
20,000 items, sampled uniformly, or by priority in the loop. Frames are noise, or *sparse*: of one
color with eight sprites, which snappy compresses to a fourteenth. Each subject and each kind of
frames runs in a process of its own, one after the other, as often as `--repeats` says; the table
shows medians and, in brackets, the least and the largest. The loop of NumPy has no priorities.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from in_process import _rate, show

_SIZE = 20_000
_BATCH = 256
_STACK = 5
_ADDS = 32
_EXPONENT = 0.6
_FRAME = (84, 84)
_NUM_FRAMES = 4_000
_BUSY = "import numpy as np\na = np.random.rand(1000, 1000)\nwhile True: a @ a"

Case = tuple[str, Callable[[], Any], int]
Columns = dict[str, np.ndarray]


def main() -> None:
    """Prints the cases, with a line for each subject."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each case")
    parser.add_argument("--python", action="append", default=[], metavar="LABEL=PYTHON")
    parser.add_argument("--kind", choices=_KINDS, action="append", help="of the frames")
    parser.add_argument("--busy", action="store_true", help="beside a busy process")
    parser.add_argument("--subject", choices=_SUBJECTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    kinds = arguments.kind or list(_KINDS)
    if arguments.subject:
        (kind,) = kinds
        cases = _SUBJECTS[arguments.subject](_columns(kind))
        print(json.dumps({name: _rate(call, n, arguments.seconds) for name, call, n in cases}))
        return
    subjects = {name: (sys.executable, name) for name in _SUBJECTS}
    if not importlib.util.find_spec("cpprb"):
        del subjects["cpprb"]
    for text in arguments.python:
        label, _, python = text.partition("=")
        subjects[label] = (python, "auto")
    figures: dict[str, dict[str, list[float]]] = {}
    with _beside(arguments.busy):
        for _ in range(arguments.repeats):
            for kind in kinds:
                for label, (python, subject) in subjects.items():
                    options = ["--subject", subject, "--kind", kind]
                    options += ["--seconds", str(arguments.seconds)]
                    command = [python, __file__, *options]
                    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                    for name, rate in json.loads(run.stdout).items():
                        of_case = figures.setdefault(f"{kind}: {name}", {})
                        of_case.setdefault(label, []).append(rate)
    show(figures)


@contextlib.contextmanager
def _beside(is_busy: bool) -> Iterator[None]:
    """Keeps one processor busy meanwhile, like a learner."""
    if not is_busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", _BUSY], env={"OPENBLAS_NUM_THREADS": "1"})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _noise(random: np.random.Generator) -> np.ndarray:
    return random.integers(0, 256, (_NUM_FRAMES, *_FRAME), dtype=np.uint8)


def _sparse(random: np.random.Generator) -> np.ndarray:
    frames = np.empty((_NUM_FRAMES, *_FRAME), np.uint8)
    for frame in frames:
        frame[:] = random.integers(0, 3) * 40
        for _ in range(8):
            height, width = random.integers(3, 9, 2)
            y, x = random.integers(0, 84 - height), random.integers(0, 84 - width)
            # A third of the sprites has a texture.
            is_flat = random.random() > 0.3
            color = random.integers(0, 256, None if is_flat else (height, width))
            frame[y : y + height, x : x + width] = color
    return frames


def _columns(kind: str) -> Columns:
    random = np.random.default_rng(0)
    return {
        "obs": _KINDS[kind](random),
        "act": random.integers(0, 9, _NUM_FRAMES).astype(np.int32),
        "rew": random.standard_normal(_NUM_FRAMES).astype(np.float32),
    }


_SAMPLE = f"sample {_BATCH} (items/s)"
_LOOP = f"loop: write {_ADDS}, sample {_BATCH}, update (loops/s)"


def _reverb(columns: Columns, compression: str) -> Iterator[Case]:
    import reverb

    def table(name: str, sampler: Any) -> reverb.Table:
        limiter = reverb.rate_limiters.MinSize(1)
        return reverb.Table(name, sampler, reverb.selectors.Fifo(), _SIZE, limiter)

    prioritized = reverb.selectors.Prioritized(_EXPONENT)
    tables = [table("uniform", reverb.selectors.Uniform()), table("prioritized", prioritized)]
    server = reverb.Server(tables)
    # Releases without the argument always compress.
    options: dict[str, Any] = {"compression": compression} if compression == "none" else {}
    client = reverb.Client(f"localhost:{server.port}", **options)
    writer = client.trajectory_writer(num_keep_alive_refs=_STACK)
    written = 0

    def write(count: int, *names: str) -> None:
        nonlocal written
        for _ in range(count):
            at = written % _NUM_FRAMES
            writer.append({name: column[at] for name, column in columns.items()})
            written += 1
            if written < _STACK:
                continue
            history = writer.history
            item = {"obs": history["obs"][-_STACK:]}
            item |= {name: history[name][-1:] for name in ("act", "rew")}
            for name in names:
                writer.create_item(name, 1.0, item)

    write(_SIZE + _STACK - 1, "uniform", "prioritized")
    writer.flush()
    updates = np.random.default_rng(3).random(_BATCH)

    def loop() -> None:
        write(_ADDS, "prioritized")
        # A writer that never waits would be measured without the table.
        writer.flush(block_until_num_items=_ADDS)
        batch = client.sample_batch("prioritized", _BATCH)
        client.update_priorities("prioritized", batch.info.key, updates)

    yield _SAMPLE, lambda: client.sample_batch("uniform", _BATCH), _BATCH
    yield _LOOP, loop, 1
    writer.close()
    server.stop()


def _cpprb(columns: Columns) -> Iterator[Case]:
    import cpprb  # pyright: ignore[reportMissingImports]

    spec: dict[str, Any] = {
        "obs": {"shape": (*_FRAME, _STACK), "dtype": np.uint8},
        "act": {"dtype": np.int32},
        "rew": {"dtype": np.float32},
    }
    size = _SIZE + _STACK - 1
    uniform = cpprb.ReplayBuffer(size, spec, stack_compress="obs")
    prioritized = cpprb.PrioritizedReplayBuffer(size, spec, alpha=_EXPONENT, stack_compress="obs")
    frames = np.moveaxis(np.concatenate([columns["obs"], columns["obs"][:_STACK]]), 0, -1)
    written = 0

    def write(count: int, *buffers: Any) -> None:
        nonlocal written
        for _ in range(count):
            at = written % _NUM_FRAMES
            numbers = {name: columns[name][at] for name in ("act", "rew")}
            for buffer in buffers:
                buffer.add(obs=frames[..., at : at + _STACK], **numbers)
            written += 1

    write(_SIZE, uniform, prioritized)
    updates = np.random.default_rng(3).random(_BATCH)

    def loop() -> None:
        write(_ADDS, prioritized)
        batch = prioritized.sample(_BATCH)
        prioritized.update_priorities(batch["indexes"], updates)

    yield _SAMPLE, lambda: uniform.sample(_BATCH), _BATCH
    yield _LOOP, loop, 1


def _numpy(columns: Columns) -> Iterator[Case]:
    random = np.random.default_rng(1)
    rows = np.arange(_SIZE + _STACK - 1) % _NUM_FRAMES
    ring = {name: column[rows] for name, column in columns.items()}
    offsets = np.arange(_STACK)
    written = 0

    def sample() -> Columns:
        at = random.integers(0, _SIZE, _BATCH)
        numbers = {name: ring[name][at + _STACK - 1] for name in ("act", "rew")}
        return {"obs": ring["obs"][at[:, None] + offsets]} | numbers

    def loop() -> None:
        nonlocal written
        for _ in range(_ADDS):
            for name, column in ring.items():
                column[written % _SIZE] = columns[name][written % _NUM_FRAMES]
            written += 1
        sample()

    yield _SAMPLE, sample, _BATCH
    yield _LOOP, loop, 1


_KINDS = {"noise": _noise, "sparse": _sparse}
_SUBJECTS: dict[str, Callable[[Columns], Iterator[Case]]] = {
    "auto": lambda columns: _reverb(columns, "auto"),
    "none": lambda columns: _reverb(columns, "none"),
    "cpprb": _cpprb,
    "numpy": _numpy,
}

if __name__ == "__main__":
    main()
