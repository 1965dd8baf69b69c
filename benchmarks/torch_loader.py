# SPDX-License-Identifier: Apache-2.0
"""Measures what a `Loader` of PyTorch adds to `Client.sample_batch`, on the CPU.

    python benchmarks/torch_loader.py
    python benchmarks/torch_loader.py --rounds 31 --compute-us 2000
    python benchmarks/torch_loader.py --compute-us 1000 --with-gil

A server in this process, and batches of 256 items of three sizes, fetched in turn by
`sample_batch`, by `reverb.batches` and by a `Loader`. The table shows the medians over the rounds,
and the median of the ratios of neighbours: above 1, it is faster than `sample_batch`. With
`--compute-us`, the program computes for so long after each batch, without the GIL, as a learner
does, or with it, as one that is written in Python does; fetching ahead then hides behind it. The
times do not have what the program computes; the ratios do.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import reverb
from reverb import testing
from reverb.adapters.torch import Loader

BATCH_SIZE = 256
NUM_ITEMS = 5_000
# Shape and dtype of the largest column, and how many batches a measurement has.
SIZES: dict[str, tuple[tuple[int, ...], Any, int]] = {
    "16 B": ((4,), np.float32, 1000),
    "4 kB": ((1000,), np.float32, 300),
    "28 kB": ((84, 84, 4), np.uint8, 60),
}


def main() -> None:
    """Prints a line for each size of items."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compute-us", type=float, default=0)
    parser.add_argument("--with-gil", action="store_true", help="compute in Python")
    arguments = parser.parse_args()
    print(f"{'item':>6}{'sample_batch':>14}{'batches':>17}{'Loader':>17}")
    for name in SIZES:
        compute_us = arguments.compute_us
        compute = compute_in_python if arguments.with_gil else time.sleep
        direct, *others = measure(name, arguments.rounds, compute_us * 1e-6, compute)
        cells = [f"{us - compute_us:7.0f} us{ratio:5.2f} x" for us, ratio in others]
        print(f"{name:>6}{direct[0] - compute_us:11.0f} us {cells[0]:>17}{cells[1]:>17}")


def compute_in_python(seconds: float) -> None:
    """Keeps the GIL for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def measure(
    name: str, rounds: int, compute_s: float, compute: Callable[[float], None]
) -> list[tuple[float, float]]:
    """Returns, of each way, microseconds of a batch and how much faster than the first it is."""
    shape, dtype, num_batches = SIZES[name]
    with testing.server([testing.table("replay", max_size=NUM_ITEMS)]) as client:
        fill(client, shape, dtype)
        with (
            reverb.batches(client, "replay", BATCH_SIZE) as iterator,
            Loader(client, "replay", BATCH_SIZE) as loader,
        ):
            ways = [
                lambda: client.sample_batch("replay", BATCH_SIZE),
                lambda: next(iterator),
                lambda: next(loader),
            ]
            work = functools.partial(compute, compute_s) if compute_s else lambda: None
            times = [[batch_us(way, num_batches, work) for way in ways] for _ in range(rounds)]
    return [
        (
            statistics.median(row[at] for row in times),
            statistics.median(row[0] / row[at] for row in times),
        )
        for at in range(len(ways))
    ]


def batch_us(way: Callable[[], Any], num_batches: int, work: Callable[[], None]) -> float:
    """Returns microseconds of a batch, with what is computed."""
    start = time.perf_counter()
    for _ in range(num_batches):
        way()
        work()
    return (time.perf_counter() - start) / num_batches * 1e6


def fill(client: reverb.Client, shape: tuple[int, ...], dtype: Any) -> None:
    """Writes items with that column, an action and a reward."""
    random = np.random.default_rng(0)
    for _ in range(0, NUM_ITEMS, 500):
        column = random.integers(0, 255, (500, *shape)).astype(dtype)
        small = np.arange(500)
        client.insert_batch([column, small, np.float32(small)], {"replay": 1.0})


if __name__ == "__main__":
    main()
