# SPDX-License-Identifier: Apache-2.0
"""Measures a table in this process beside buffers that are nothing but memory.

    python benchmarks/in_process.py               # NumPy; cpprb and TorchRL where installed
    python benchmarks/in_process.py --python old=other/bin/python --repeats 7

Transitions of float32[4], int32 and float32, a table of 1e5, batches of 256. Atari items are
stacks of five frames of noise, each frame stored once, in a table of 1e4. Each subject runs in a
process of its own, one after the other, and that as often as `--repeats` says; the table shows
medians of items per second and, in brackets, the least and the largest. `--python` adds a `reverb`
of another interpreter.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_SIZE = 100_000
_BATCH = 256
_EXPONENT = 0.6
_ENVIRONMENTS = 64
_LOOP_ADDS = 32
_STACK = 5
_STACKS = 10_000
_FRAME = (84, 84)


def main() -> None:
    """Prints the cases, with a line for each subject."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case")
    parser.add_argument("--python", action="append", default=[], metavar="LABEL=PYTHON")
    parser.add_argument("--subject", choices=_SUBJECTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.subject:
        cases = _SUBJECTS[arguments.subject](_columns(_SIZE))
        print(json.dumps({name: _rate(call, n, arguments.seconds) for name, call, n in cases}))
        return
    subjects = {"reverb": (sys.executable, "reverb"), "numpy": (sys.executable, "numpy")}
    for peer in ("cpprb", "torchrl"):
        if importlib.util.find_spec(peer):
            subjects[peer] = (sys.executable, peer)
    for text in arguments.python:
        label, _, python = text.partition("=")
        subjects[label] = (python, "reverb")
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(arguments.repeats):
        for label, (python, subject) in subjects.items():
            options = ["--subject", subject, "--seconds", str(arguments.seconds)]
            run = subprocess.run(
                [python, __file__, *options], stdout=subprocess.PIPE, text=True, check=True
            )
            # Libraries may log lines before it.
            for name, rate in json.loads(run.stdout.splitlines()[-1]).items():
                figures.setdefault(name, {}).setdefault(label, []).append(rate)
    show(figures)


def show(figures: dict[str, dict[str, list[float]]]) -> None:
    """Prints each case's rates of each subject: the median, the least and the largest."""
    for name, rates in figures.items():
        print(name)
        for label, found in rates.items():
            least, most = min(found), max(found)
            print(f"  {label:12} {statistics.median(found):12,.0f}   ({least:,.0f} to {most:,.0f})")


def _columns(size: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "obs": random.standard_normal((size, 4)).astype(np.float32),
        "act": random.integers(0, 9, size).astype(np.int32),
        "rew": random.standard_normal(size).astype(np.float32),
    }


def _frames() -> np.ndarray:
    size = (_STACKS + _STACK - 1, *_FRAME)
    return np.random.default_rng(2).integers(0, 256, size, dtype=np.uint8)


def _rate(call: Callable[[], Any], items: int, seconds: float) -> float:
    """Returns items per second; the calls of the first tenth are not counted."""
    _calls(call, seconds / 10)
    started = time.perf_counter()
    return items * _calls(call, seconds) / (time.perf_counter() - started)


def _calls(call: Callable[[], Any], seconds: float) -> int:
    deadline = time.perf_counter() + seconds
    calls = 0
    while time.perf_counter() < deadline:
        call()
        calls += 1
    return calls


_Case = tuple[str, Callable[[], Any], int]

# Cases of writers stand beside plain adds of as many rows.
_LOOP = f"loops: add {_LOOP_ADDS}, sample {_BATCH}, update"
_LOOP_WITH_DICT = "the same, priorities in a dict"
_LAST_STEP = f"write {_ENVIRONMENTS} at once, last step"
_LAST_STEPS = f"write {_ENVIRONMENTS} at once, last two"
_ONE_BY_ONE = "write one by one"
_STACKS_CASE = f"sample {_BATCH} stacks of frames"


def _reverb(columns: dict[str, np.ndarray]) -> Iterator[_Case]:
    import reverb

    uniform, fifo = reverb.selectors.Uniform, reverb.selectors.Fifo
    prioritized = reverb.selectors.Prioritized(_EXPONENT)

    def table(name: str, sampler: Any, size: int) -> reverb.Table:
        return reverb.Table(name, sampler, fifo(), size, reverb.rate_limiters.MinSize(1))

    tables = [table("uniform", uniform(), _SIZE), table("prioritized", prioritized, _SIZE)]
    server = reverb.Server([*tables, table("stacks", uniform(), _STACKS)])
    client = server.localhost_client()
    priorities = np.random.default_rng(1).random(_SIZE)
    # One chunk for each item, and no item in both tables.
    for name in ("uniform", "prioritized"):
        for first in range(0, _SIZE, 1000):
            rows = slice(first, first + 1000)
            batch = {key: column[rows] for key, column in columns.items()}
            client.insert_batch(batch, {name: priorities[rows]})

    def sample(name: str, size: int) -> Callable[[], Any]:
        return lambda: client.sample_batch(name, size)

    def add(size: int) -> Callable[[], Any]:
        batch, ones = {key: column[:size] for key, column in columns.items()}, np.ones(size)
        return lambda: client.insert_batch(batch, {"uniform": ones})

    yield f"sample {_BATCH}, uniform", sample("uniform", _BATCH), _BATCH
    yield f"sample {_BATCH}, prioritized", sample("prioritized", _BATCH), _BATCH
    yield "sample 1, uniform", sample("uniform", 1), 1
    yield f"add {_BATCH}", add(_BATCH), _BATCH
    yield "add 1", add(1), 1

    some = {key: column[:_LOOP_ADDS] for key, column in columns.items()}
    ones, updates = np.ones(_LOOP_ADDS), np.random.default_rng(3).random(_BATCH)

    def loop() -> None:
        client.insert_batch(some, {"prioritized": ones})
        batch = client.sample_batch("prioritized", _BATCH)
        client.update_priorities("prioritized", batch.info.key, updates)

    def loop_with_dict() -> None:
        client.insert_batch(some, {"prioritized": ones})
        batch = client.sample_batch("prioritized", _BATCH)
        client.mutate_priorities("prioritized", dict(zip(batch.info.key, updates, strict=True)))

    if hasattr(client, "update_priorities"):
        yield _LOOP, loop, 1
    yield _LOOP_WITH_DICT, loop_with_dict, 1

    for steps, name in ((1, _LAST_STEP), (2, _LAST_STEPS)):
        yield name, _batched_writer(client, columns, steps), _ENVIRONMENTS
    yield _ONE_BY_ONE, _trajectory_writer(client, columns), 1

    with client.trajectory_writer(num_keep_alive_refs=_STACK) as writer:
        for number, frame in enumerate(_frames()):
            writer.append({"obs": frame})
            if number >= _STACK - 1:
                writer.create_item("stacks", 1.0, {"obs": writer.history["obs"][-_STACK:]})
    yield _STACKS_CASE, sample("stacks", _BATCH), _BATCH
    server.stop()


def _batched_writer(client: Any, columns: dict[str, np.ndarray], steps: int) -> Callable[[], Any]:
    """A call that appends a step of all environments, and creates items of the last `steps`."""
    writer = client.batched_trajectory_writer(_ENVIRONMENTS, num_keep_alive_refs=steps)
    step = {key: column[:_ENVIRONMENTS] for key, column in columns.items()}
    ones = np.ones(_ENVIRONMENTS)
    writer.append(step)
    calls = 0

    def call() -> None:
        nonlocal calls
        writer.append(step)
        history = writer.history
        writer.create_items("uniform", ones, {key: history[key][-steps:] for key in step})
        calls += 1
        # A writer that never waits would be measured alone, without the table.
        if calls % 16 == 0:
            writer.flush(block_until_num_items=32 * _ENVIRONMENTS)

    return call


def _trajectory_writer(client: Any, columns: dict[str, np.ndarray]) -> Callable[[], Any]:
    """A call that appends a step, and creates an item of it."""
    writer = client.trajectory_writer(num_keep_alive_refs=1)
    step = {key: column[0] for key, column in columns.items()}
    calls = 0

    def call() -> None:
        nonlocal calls
        writer.append(step)
        history = writer.history
        writer.create_item("uniform", 1.0, {key: history[key][-1:] for key in step})
        calls += 1
        if calls % 512 == 0:
            writer.flush(block_until_num_items=1024)

    return call


def _cpprb(columns: dict[str, np.ndarray]) -> Iterator[_Case]:
    import cpprb  # pyright: ignore[reportMissingImports]

    spec = {
        name: {"shape": column.shape[1:] or 1, "dtype": column.dtype}
        for name, column in columns.items()
    }
    uniform = cpprb.ReplayBuffer(_SIZE, spec)
    prioritized = cpprb.PrioritizedReplayBuffer(_SIZE, spec, alpha=_EXPONENT)
    stacks = cpprb.ReplayBuffer(
        _STACKS + _STACK - 1,
        {"obs": {"shape": (*_FRAME, _STACK), "dtype": np.uint8}},
        stack_compress="obs",
    )
    uniform.add(**columns)
    prioritized.add(**columns, priorities=np.random.default_rng(1).random(_SIZE))
    frames = _frames()
    for first in range(_STACKS):
        stacks.add(obs=np.moveaxis(frames[first : first + _STACK], 0, -1))

    def add(size: int) -> Callable[[], Any]:
        batch = {key: column[:size] for key, column in columns.items()}
        return lambda: uniform.add(**batch)

    some = {key: column[:_LOOP_ADDS] for key, column in columns.items()}
    updates = np.random.default_rng(3).random(_BATCH)

    def loop() -> None:
        prioritized.add(**some)
        batch = prioritized.sample(_BATCH)
        prioritized.update_priorities(batch["indexes"], updates)

    yield f"sample {_BATCH}, uniform", lambda: uniform.sample(_BATCH), _BATCH
    yield f"sample {_BATCH}, prioritized", lambda: prioritized.sample(_BATCH), _BATCH
    yield "sample 1, uniform", lambda: uniform.sample(1), 1
    yield f"add {_BATCH}", add(_BATCH), _BATCH
    yield "add 1", add(1), 1
    yield _LOOP, loop, 1
    yield _LAST_STEP, add(_ENVIRONMENTS), _ENVIRONMENTS
    yield _ONE_BY_ONE, add(1), 1
    yield _STACKS_CASE, lambda: stacks.sample(_BATCH), _BATCH


def _torchrl(columns: dict[str, np.ndarray]) -> Iterator[_Case]:
    import torch  # pyright: ignore[reportMissingImports]
    from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
    from torchrl import data  # pyright: ignore[reportMissingImports]

    def rows(size: int) -> Any:
        tensors = {key: torch.from_numpy(column[:size].copy()) for key, column in columns.items()}
        return TensorDict(tensors, batch_size=[size])

    storage = lambda: data.LazyTensorStorage(_SIZE)  # noqa: E731
    uniform = data.TensorDictReplayBuffer(storage=storage(), batch_size=_BATCH)
    prioritized = data.TensorDictPrioritizedReplayBuffer(
        alpha=_EXPONENT, beta=0.4, storage=storage(), batch_size=_BATCH
    )
    uniform.extend(rows(_SIZE))
    prioritized.extend(rows(_SIZE))
    updates = torch.rand(_BATCH)

    def loop() -> None:
        prioritized.extend(some)
        batch = prioritized.sample()
        prioritized.update_priority(batch["index"], updates)

    some, many, one = rows(_LOOP_ADDS), rows(_BATCH), rows(1)
    several = rows(_ENVIRONMENTS)
    yield f"sample {_BATCH}, uniform", uniform.sample, _BATCH
    yield f"sample {_BATCH}, prioritized", prioritized.sample, _BATCH
    yield "sample 1, uniform", lambda: uniform.sample(1), 1
    yield f"add {_BATCH}", lambda: uniform.extend(many), _BATCH
    yield "add 1", lambda: uniform.extend(one), 1
    yield _LOOP, loop, 1
    yield _LAST_STEP, lambda: uniform.extend(several), _ENVIRONMENTS
    yield _ONE_BY_ONE, lambda: uniform.extend(one), 1


def _numpy(columns: dict[str, np.ndarray]) -> Iterator[_Case]:
    random = np.random.default_rng(1)
    ring = {key: column.copy() for key, column in columns.items()}
    position = 0

    def sample(size: int) -> dict[str, np.ndarray]:
        picked = random.integers(0, _SIZE, size)
        return {key: column[picked] for key, column in ring.items()}

    def add(size: int) -> None:
        nonlocal position
        position = position if position + size <= _SIZE else 0
        for key, column in ring.items():
            column[position : position + size] = columns[key][:size]
        position += size

    frames = _frames()
    offsets = np.arange(_STACK)

    yield f"sample {_BATCH}, uniform", lambda: sample(_BATCH), _BATCH
    yield "sample 1, uniform", lambda: sample(1), 1
    yield f"add {_BATCH}", lambda: add(_BATCH), _BATCH
    yield "add 1", lambda: add(1), 1
    yield _LAST_STEP, lambda: add(_ENVIRONMENTS), _ENVIRONMENTS
    yield _ONE_BY_ONE, lambda: add(1), 1
    yield (
        _STACKS_CASE,
        lambda: frames[random.integers(0, _STACKS, _BATCH)[:, None] + offsets],
        _BATCH,
    )


_SUBJECTS = {"reverb": _reverb, "cpprb": _cpprb, "numpy": _numpy, "torchrl": _torchrl}

if __name__ == "__main__":
    main()
