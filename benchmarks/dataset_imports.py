# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of imports: steps per second, and RssAnon above that of the first episode.

    python benchmarks/dataset_imports.py
    python benchmarks/dataset_imports.py --formats npz minari --episodes 2000 --steps 200

Each case is a process of its own, beside a server in another process. The steps have observations
`[4]` float32 and a discrete action.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import reverb
from reverb import datasets

ITEMS = {
    "episodes": datasets.Episodes(max_length=10**6),
    "transitions": datasets.Transitions(),
    "3-step": datasets.Transitions(n_step=3),
    "sequences": datasets.Sequences(length=20, stride=10),
}
FORMATS = ("npz", "parquet", "minari", "hf", "rlds", "lerobot")


def main() -> None:
    """Prints a row for each format and kind of items."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--items", nargs="+", default=list(ITEMS), choices=list(ITEMS))
    parser.add_argument("--episodes", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run(*options.case)))
        return
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {
            "MINARI_DATASETS_PATH": directory,
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": directory,
        }
        print(f"{options.episodes} episodes of {options.steps} steps")
        print(f"{'format':<10}{'items':<14}{'steps/s':>10}{'MiB':>8}")
        for format_ in options.formats:
            source = make(format_, pathlib.Path(directory), options.episodes, options.steps)
            for items in options.items:
                print_row(format_, items, source)


def print_row(format_: str, items: str, source: str) -> None:
    """Runs a case beside a server, and prints its figures."""
    first = next(datasets.episodes(source))
    table = reverb.Table(
        "table",
        reverb.selectors.Uniform(),
        reverb.selectors.Fifo(),
        10_000_000,
        reverb.rate_limiters.MinSize(1),
        signature=datasets.signature(first, ITEMS[items], reward_dtype=first.rewards.dtype),
    )
    server = reverb.Server([table])
    command = [
        sys.executable,
        __file__,
        "--case",
        format_,
        items,
        source,
        f"localhost:{server.port}",
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    server.stop()
    figures = json.loads(done.stdout.splitlines()[-1])
    print(f"{format_:<10}{items:<14}{figures['speed']:>10,.0f}{figures['mib']:>8.0f}", flush=True)


def run(format_: str, items: str, source: str, address: str) -> dict[str, float]:
    """Imports a dataset, and measures it."""
    del format_
    next(datasets.episodes(source))
    before = anonymous_mib()
    largest = before
    done = threading.Event()

    def watch() -> None:
        nonlocal largest
        while not done.wait(0.01):
            largest = max(largest, anonymous_mib())

    thread = threading.Thread(target=watch)
    thread.start()
    client = reverb.Client(address)
    client.server_info()
    started = time.monotonic()
    counts = datasets.write(client, "table", datasets.episodes(source), ITEMS[items])
    seconds = time.monotonic() - started
    done.set()
    thread.join()
    return {"speed": counts.num_steps / seconds, "mib": largest - before}


def anonymous_mib() -> float:
    """Memory of this process that no file has, in MiB."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def make(format_: str, directory: pathlib.Path, num_episodes: int, num_steps: int) -> str:
    """Makes a dataset; returns its name."""

    def episodes():
        rng = np.random.default_rng(1)
        ends = np.arange(num_steps) == num_steps - 1
        for number in range(num_episodes):
            yield datasets.Episode(
                observations=rng.normal(size=(num_steps + 1, 4)).astype(np.float32),
                actions=rng.integers(0, 2, num_steps),
                rewards=rng.normal(size=num_steps).astype(np.float32),
                terminated=ends,
                truncated=np.zeros(num_steps, np.bool_),
                number=number,
            )

    if format_ == "minari":
        datasets.save(episodes(), "minari:bench/steps-v0")
        return "minari:bench/steps-v0"
    if format_ in ("rlds", "lerobot"):
        options = {"fps": 10} if format_ == "lerobot" else {}
        datasets.save(episodes(), f"{format_}:{directory / format_}", **options)
        return f"{format_}:{directory / format_}"
    if format_ in ("hf", "parquet"):
        if not (directory / "hf").exists():
            datasets.save(episodes(), f"hf:{directory / 'hf'}")
        return f"{format_}:{directory / 'hf'}"
    made = list(episodes())
    path = directory / "steps.npz"
    np.savez(
        path,
        observations=np.concatenate([it.observations[:-1] for it in made]),
        next_observations=np.concatenate([it.observations[1:] for it in made]),
        actions=np.concatenate([it.actions for it in made]),
        rewards=np.concatenate([it.rewards for it in made]),
        terminated=np.concatenate([it.terminated for it in made]),
        truncated=np.concatenate([it.truncated for it in made]),
    )
    return f"npz:{path}"


if __name__ == "__main__":
    main()
