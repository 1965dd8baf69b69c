# SPDX-License-Identifier: Apache-2.0
"""Measures what a recorder adds to a step of a Gymnasium vector environment.

    python benchmarks/gymnasium_recorder.py
    python benchmarks/gymnasium_recorder.py --envs 8 64 --rounds 31

A server in this process, and CartPole in a `SyncVectorEnv`, with and without a recorder, stepped in
turn. The table shows medians over the rounds: the time of a step of all environments without a
recorder, what the recorder adds, and the median of the ratios of neighbours. "CPU" is the same in
time of the thread that steps; the rest of the work is done by threads in the background.
"""

from __future__ import annotations

import argparse
import statistics
import time

import gymnasium
import numpy as np

from reverb import testing
from reverb.adapters.gymnasium import Recorder, Sequences, Transitions

ITEMS = {
    "Transitions()": Transitions(),
    "Transitions(n_step=3)": Transitions(n_step=3),
    "Sequences(20, stride=10)": Sequences(20, stride=10),
}


def main() -> None:
    """Prints a line for each number of environments and kind of items."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--envs", type=int, nargs="+", default=[64])
    parser.add_argument("--steps", type=int, default=200, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    print(f"{'':>4}  {'items':26}{'step':>9}{'recorder':>10}{'ratio':>8}{'CPU':>8}")
    for num_envs in arguments.envs:
        for name, items in ITEMS.items():
            plain, added, ratio, cpu = measure(num_envs, items, arguments.steps, arguments.rounds)
            print(
                f"{num_envs:4}  {name:26}{plain * 1e6:6.0f} us{added * 1e6:7.0f} us"
                f"{ratio:7.1%}{cpu:8.1%}"
            )


def measure(
    num_envs: int, items: Transitions | Sequences, steps: int, rounds: int
) -> tuple[float, float, float, float]:
    """Returns seconds of a step, what a recorder adds, and both ratios."""
    with testing.server([testing.table("replay", max_size=200_000)]) as client:
        plain = make(num_envs)
        recorder = Recorder(make(num_envs), client, "replay", items)
        random = np.random.default_rng(0)
        actions = [random.integers(0, 2, num_envs) for _ in range(64)]
        plain.reset(seed=1)
        recorder.reset(seed=1)
        for envs in (plain, recorder):
            run(envs, actions, steps)
        pairs = [(run(plain, actions, steps), run(recorder, actions, steps)) for _ in range(rounds)]
        recorder.close()
        plain.close()
    return (
        statistics.median(without[0] for without, _ in pairs),
        statistics.median(with_[0] - without[0] for without, with_ in pairs),
        statistics.median(with_[0] / without[0] - 1 for without, with_ in pairs),
        statistics.median(with_[1] / without[1] - 1 for without, with_ in pairs),
    )


def make(num_envs: int) -> gymnasium.vector.VectorEnv:
    """Returns CartPole environments in this thread."""
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")


def run(
    envs: gymnasium.vector.VectorEnv, actions: list[np.ndarray], steps: int
) -> tuple[float, float]:
    """Returns the seconds of a step, and those of this thread's processor."""
    started, worked = time.perf_counter(), time.thread_time()
    for i in range(steps):
        envs.step(actions[i % len(actions)])
    return (
        (time.perf_counter() - started) / steps,
        (time.thread_time() - worked) / steps,
    )


if __name__ == "__main__":
    main()
