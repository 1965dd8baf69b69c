# SPDX-License-Identifier: Apache-2.0
"""Measures what the buffer for Stable-Baselines3 costs a training, beside the library's own.

    python benchmarks/sb3_add.py
    python benchmarks/sb3_add.py --steps 20000 --runs 3

The time of a call of `add` and of a `sample` of 64, the median and the best of many rounds of 200
calls, and the wall time of a DQN on CartPole with the defaults of the library. The two buffers take
turns, because machines do not stay as fast as they are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

from reverb.adapters.sb3 import ReverbReplayBuffer

# Calls of a round: an episode.
ROUND = 200

VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
STACK = spaces.Box(0, 255, (4, 84, 84), np.uint8)

# Space, number of environments, number of steps of a transition.
ADDS = {
    "add, a vector of 4, 1 environment": (VECTOR, 1, 1),
    "add, a vector of 4, 16 environments": (VECTOR, 16, 1),
    "add, a vector of 4, 1 environment, 3 steps": (VECTOR, 1, 3),
    "add, stacks of 4 x 84 x 84, 1 environment": (STACK, 1, 1),
    "add, stacks of 4 x 84 x 84, 8 environments": (STACK, 8, 1),
}


def main() -> None:
    """Prints a line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30, help="of 200 calls")
    parser.add_argument("--steps", type=int, default=20_000, help="of DQN; 0: without it")
    parser.add_argument("--runs", type=int, default=3, help="of DQN")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, (space, num_envs, n_steps) in ADDS.items():
        buffers = (
            made(ReverbReplayBuffer, space, num_envs, n_steps),
            made(ReplayBuffer, space, num_envs, n_steps),
        )
        steps = episode(space, num_envs)
        # The first round of a buffer takes what is made once.
        rounds = [[adding(it, steps) for it in buffers] for _ in range(arguments.rounds + 1)][1:]
        report(name, "us", rounds)
        if num_envs == 1 and n_steps == 1:
            rounds = [[sampling(it) for it in buffers] for _ in range(arguments.rounds)]
            report(name.replace("add", "sample of 64"), "us", rounds)
        buffers[0].close()
    if arguments.steps:
        rounds = [
            [training(kind, arguments.steps, seed) for kind in (ReverbReplayBuffer, ReplayBuffer)]
            for seed in range(arguments.runs)
        ]
        report(f"DQN, CartPole, {arguments.steps} steps", "s", rounds)


def made(kind: Any, space: Any, num_envs: int, n_steps: int) -> Any:
    """Returns a buffer."""
    options: dict[str, Any] = {"n_envs": num_envs}
    if n_steps > 1:
        options |= {"n_steps": n_steps}
        kind = NStepReplayBuffer if kind is ReplayBuffer else kind
    size = 50_000 if space is VECTOR else 1_000 * num_envs
    return kind(size, space, spaces.Discrete(2), "cpu", **options)


def episode(space: Any, num_envs: int) -> list[Any]:
    """Returns the arguments of `ROUND` calls of `add`, the last of which ends the episodes."""
    random = np.random.default_rng(0)
    if space is VECTOR:
        numbers = random.normal(size=(ROUND + 1, num_envs, 4)).astype(np.float32)
        observations = list(numbers)
    else:
        frames = random.integers(0, 256, (num_envs, ROUND + 4, 84, 84), np.uint8)
        observations = [frames[:, at : at + 4].copy() for at in range(ROUND + 1)]
    action, reward = np.zeros((num_envs, 1), np.int64), np.ones(num_envs, np.float32)
    infos: list[Any] = [{} for _ in range(num_envs)]
    return [
        (*observations[at : at + 2], action, reward, np.full(num_envs, at == ROUND - 1), infos)
        for at in range(ROUND)
    ]


def adding(buffer: Any, steps: list[Any]) -> float:
    """Microseconds of an `add`."""

    def add() -> None:
        for step in steps:
            buffer.add(*step)

    return seconds(add) / len(steps) * 1e6


def sampling(buffer: Any) -> float:
    """Microseconds of a `sample`."""

    def sample() -> None:
        for _ in range(ROUND):
            buffer.sample(64)

    return seconds(sample) / ROUND * 1e6


def training(kind: Any, steps: int, seed: int) -> float:
    """Seconds of a training, without its start."""
    model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=kind, seed=seed, device="cpu")
    return seconds(lambda: model.learn(steps))


def seconds(call: Callable[[], Any]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def report(name: str, unit: str, rounds: list[list[float]]) -> None:
    """Prints medians and best times of both buffers."""
    ours, theirs = zip(*rounds, strict=True)
    medians = [statistics.median(it) for it in (ours, theirs)]
    print(
        f"{name:45} ours {medians[0]:7.1f} (best {min(ours):.1f})  theirs {medians[1]:7.1f} "
        f"(best {min(theirs):.1f}) {unit}  {medians[0] / medians[1]:.2f} x",
        flush=True,
    )


if __name__ == "__main__":
    main()
