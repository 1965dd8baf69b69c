# SPDX-License-Identifier: Apache-2.0
"""Measures a table in this process beside buffers that are nothing but memory: cpprb and NumPy.

    python benchmarks/in_process.py                       # NumPy, and cpprb where it is installed
    python benchmarks/in_process.py --python old=other/bin/python --repeats 7

Transitions of float32[4], int32 and float32, a table of 1e5, batches of 256. Each subject runs in a
process of its own, one after the other, and that as often as `--repeats` says; the table shows
medians. `--python` adds a `reverb` of another interpreter.
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


def main() -> None:
    """Prints one line for each case, with a column for each subject."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case")
    parser.add_argument("--python", action="append", default=[], metavar="LABEL=PYTHON")
    parser.add_argument("--subject", choices=_SUBJECTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.subject:
        cases = _SUBJECTS[arguments.subject](_columns())
        print(json.dumps({name: _rate(call, n, arguments.seconds) for name, call, n in cases}))
        return
    subjects = {"reverb": (sys.executable, "reverb"), "numpy": (sys.executable, "numpy")}
    if importlib.util.find_spec("cpprb"):
        subjects["cpprb"] = (sys.executable, "cpprb")
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
            for name, rate in json.loads(run.stdout).items():
                figures.setdefault(name, {}).setdefault(label, []).append(rate)
    print(f"{'items/s, medians':32}" + "".join(f"{label:>12}" for label in subjects))
    for name, rates in figures.items():
        cells = [f"{statistics.median(rates[it]):,.0f}" if it in rates else "" for it in subjects]
        print(f"{name:32}" + "".join(f"{cell:>12}" for cell in cells))


def _columns() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "obs": random.standard_normal((_SIZE, 4)).astype(np.float32),
        "act": random.integers(0, 9, _SIZE).astype(np.int32),
        "rew": random.standard_normal(_SIZE).astype(np.float32),
    }


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


def _reverb(columns: dict[str, np.ndarray]) -> Iterator[_Case]:
    import reverb

    samplers = {
        "uniform": reverb.selectors.Uniform(),
        "prioritized": reverb.selectors.Prioritized(_EXPONENT),
    }
    tables = [
        reverb.Table(name, sampler, reverb.selectors.Fifo(), _SIZE, reverb.rate_limiters.MinSize(1))
        for name, sampler in samplers.items()
    ]
    server = reverb.Server(tables)
    client = server.localhost_client()
    priorities = np.random.default_rng(1).random(_SIZE)
    # One chunk for each item, and no item in both tables.
    for name in samplers:
        for first in range(0, _SIZE, 1000):
            rows = slice(first, first + 1000)
            batch = {key: column[rows] for key, column in columns.items()}
            client.insert_batch(batch, {name: priorities[rows]})
    for name in samplers:
        yield (
            f"sample {_BATCH}, {name}",
            lambda name=name: client.sample_batch(name, _BATCH),
            _BATCH,
        )
    yield "sample 1, uniform", lambda: client.sample_batch("uniform", 1), 1
    for size in (_BATCH, 1):
        batch = {key: column[:size] for key, column in columns.items()}
        ones = np.ones(size)
        yield f"add {size}", lambda: client.insert_batch(batch, {"uniform": ones}), size  # noqa: B023
    server.stop()


def _cpprb(columns: dict[str, np.ndarray]) -> Iterator[_Case]:
    import cpprb  # pyright: ignore[reportMissingImports]

    spec = {
        name: {"shape": column.shape[1:] or 1, "dtype": column.dtype}
        for name, column in columns.items()
    }
    uniform = cpprb.ReplayBuffer(_SIZE, spec)
    prioritized = cpprb.PrioritizedReplayBuffer(_SIZE, spec, alpha=_EXPONENT)
    uniform.add(**columns)
    prioritized.add(**columns, priorities=np.random.default_rng(1).random(_SIZE))
    yield f"sample {_BATCH}, uniform", lambda: uniform.sample(_BATCH), _BATCH
    yield f"sample {_BATCH}, prioritized", lambda: prioritized.sample(_BATCH), _BATCH
    yield "sample 1, uniform", lambda: uniform.sample(1), 1
    for size in (_BATCH, 1):
        batch = {key: column[:size] for key, column in columns.items()}
        yield f"add {size}", lambda: uniform.add(**batch), size  # noqa: B023


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

    yield f"sample {_BATCH}, uniform", lambda: sample(_BATCH), _BATCH
    yield "sample 1, uniform", lambda: sample(1), 1
    for size in (_BATCH, 1):
        yield f"add {size}", lambda: add(size), size  # noqa: B023


_SUBJECTS = {"reverb": _reverb, "cpprb": _cpprb, "numpy": _numpy}

if __name__ == "__main__":
    main()
