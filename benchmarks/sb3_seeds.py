# SPDX-License-Identifier: Apache-2.0
"""Compares what DQN of Stable-Baselines3 learns from its own buffer and from ours, on CartPole.

    python benchmarks/sb3_seeds.py
    python benchmarks/sb3_seeds.py --steps 50000 --seeds 10

Prints the mean return of ten greedy episodes after the training, for each seed, and the median. The
hyperparameters are those that RL Baselines3 Zoo has for CartPole. One run of 15,000 steps says
little of an algorithm; ten show whether a buffer breaks one.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.evaluation import evaluate_policy

from reverb.adapters.sb3 import ReverbReplayBuffer

HYPERPARAMETERS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
    "device": "cpu",
}


def main() -> None:
    """Prints a line for each buffer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for buffer in (ReplayBuffer, ReverbReplayBuffer):
        returns = [trained(buffer, seed, arguments.steps) for seed in range(arguments.seeds)]
        found = ", ".join(f"{it:.0f}" for it in returns)
        print(f"{buffer.__name__:20} median {statistics.median(returns):5.0f}  of {found}")


def trained(buffer: type[ReplayBuffer], seed: int, steps: int) -> float:
    """Returns the mean return after the training."""
    model = DQN(
        "MlpPolicy", "CartPole-v1", replay_buffer_class=buffer, seed=seed, **HYPERPARAMETERS
    )
    model.learn(steps)
    found, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=10, warn=False)
    return float(found)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
