# SPDX-License-Identifier: Apache-2.0
"""Learns CartPole with PyTorch: prioritized replay in a server, environments of Gymnasium.

    python examples/torch_dqn.py                  # well under a minute on two cores
    python examples/torch_dqn.py --budget quick   # less time, and an easier goal

A recorder writes what the environments do into the table, and a loader brings batches of tensors
back, fetched ahead in the background. To act in other processes, start the server by itself
(`reverb_server`), and give its address to both. The exit code is 0 only if the greedy policy
reaches the goal.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
import time

import gymnasium
import numpy as np
import torch

import reverb
from reverb.adapters.gymnasium import Recorder, Transitions, signature
from reverb.adapters.torch import Loader

NUM_ENVS = 8
BATCH_SIZE = 256
N_STEP = 5
DISCOUNT = 0.99
# Rewards are scaled, so that values are near 10 and errors near 1.
REWARD_SCALE = 0.1
PRIORITY_EXPONENT = 0.6
# Exponent of the importance weights, from the first learner step to the last.
BETA = reverb.schedules.linear(0.4, 1.0, steps=4_000)
MIN_SIZE = 1_000
# Learner steps after each step of all environments.
LEARNER_STEPS = 1
EVALUATE_PERIOD = 250  # learner steps

# Goal of the final evaluation, steps of each environment, and seconds on a machine that is busy.
BUDGETS = {"full": (195.0, 12_000, 180.0), "quick": (100.0, 5_000, 180.0)}


def make_server(envs: gymnasium.vector.VectorEnv, items: Transitions) -> reverb.Server:
    """Starts a server with one table, `replay`."""
    table = reverb.Table(
        "replay",
        sampler=reverb.selectors.Prioritized(PRIORITY_EXPONENT),
        remover=reverb.selectors.Fifo(),
        max_size=50_000,
        rate_limiter=reverb.rate_limiters.MinSize(MIN_SIZE),
        signature=signature(envs, items),
    )
    return reverb.Server([table])


def make_network() -> torch.nn.Module:
    """Returns a network from observations [B, 4] to the values of both actions [B, 2]."""
    return torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 2),
    )  # fmt: skip


class Learner:
    """Double DQN (van Hasselt et al., 2016) with prioritized n-step replay."""

    def __init__(self, loader: Loader, device: torch.device) -> None:
        """Starts with random weights."""
        self.network = make_network().to(device)
        self._target = copy.deepcopy(self.network)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self._loader = loader
        self._device = device
        self.num_steps = 0

    def step(self) -> None:
        """Trains on one batch, and updates its priorities in the background."""
        batch = next(self._loader)
        data = batch.data
        weights = reverb.importance_weights(batch, beta=BETA(self.num_steps))
        weights = torch.as_tensor(weights, device=self._device)
        with torch.no_grad():
            best = self.network(data["next_observation"]).argmax(1, keepdim=True)
            future = self._target(data["next_observation"]).gather(1, best)[:, 0]
            # The discount is 0 where the pole fell, and not where time ran out.
            target = REWARD_SCALE * data["reward"] + data["discount"] * future
        values = self.network(data["observation"]).gather(1, data["action"][:, None])[:, 0]
        errors = values - target
        loss = weights * torch.nn.functional.huber_loss(values, target, reduction="none")
        self._optimizer.zero_grad()
        loss.mean().backward()
        self._optimizer.step()
        with torch.no_grad():
            pairs = zip(self._target.parameters(), self.network.parameters(), strict=True)
            for old, new in pairs:
                old.lerp_(new, 0.01)
        self._loader.update_priorities(batch.info.key, errors.abs() + 1e-3)
        self.num_steps += 1


def actions_of(network: torch.nn.Module, observations: np.ndarray) -> np.ndarray:
    """Returns the greedy actions [B]."""
    device = next(network.parameters()).device
    with torch.inference_mode():
        return network(torch.as_tensor(observations, device=device)).argmax(1).cpu().numpy()


def evaluate(network: torch.nn.Module, seed: int, num_episodes: int = 10) -> float:
    """Returns the mean return of the greedy policy, one episode in each environment."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=num_episodes, vectorization_mode="sync")
    observations, _ = envs.reset(seed=seed)
    returns, running = np.zeros(num_episodes), np.ones(num_episodes, bool)
    while running.any():
        observations, rewards, terminated, truncated, _ = envs.step(
            actions_of(network, observations)
        )
        returns += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def train(budget: str, seed: int, device: torch.device) -> tuple[torch.nn.Module, float]:
    """Returns the best network, and the goal."""
    goal, max_env_steps, max_seconds = BUDGETS[budget]
    rng = np.random.default_rng(seed)
    items = Transitions(n_step=N_STEP, discount=DISCOUNT)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="sync")
    with make_server(envs, items) as server:
        client = reverb.Client(f"localhost:{server.port}")
        envs = Recorder(envs, client, tables="replay", items=items, priority="max")
        loader = Loader(client, "replay", BATCH_SIZE, device=device)
        with contextlib.closing(envs), loader:
            learner = Learner(loader, device)
            best, best_return = copy.deepcopy(learner.network), -1.0
            start, good_in_a_row = time.monotonic(), 0
            observations, _ = envs.reset(seed=seed)
            for env_step in range(max_env_steps):
                epsilon = max(0.02, 1.0 - env_step / 1_000)
                actions = actions_of(learner.network, observations)
                random = rng.random(NUM_ENVS) < epsilon
                actions[random] = rng.integers(0, 2, NUM_ENVS)[random]
                observations, *_ = envs.step(actions)
                if env_step * NUM_ENVS < 2 * MIN_SIZE:
                    continue
                for _ in range(LEARNER_STEPS):
                    learner.step()
                if learner.num_steps % EVALUATE_PERIOD:
                    continue
                seconds = time.monotonic() - start
                mean = evaluate(learner.network, seed + 1_000)
                stats = loader.stats()
                print(
                    f"{seconds:5.1f} s  {env_step * NUM_ENVS:7,} env steps  "
                    f"{learner.num_steps:6,} learner steps  return {mean:6.1f}  "
                    f"waited for batches {stats.wait_s:.2f} s",
                    flush=True,
                )
                # A Q-network can get worse again, so the best one so far is kept.
                if mean >= best_return:
                    best, best_return = copy.deepcopy(learner.network), mean
                good_in_a_row = good_in_a_row + 1 if mean >= 475 else 0
                if good_in_a_row == 2 or seconds > max_seconds:
                    break
    return best, goal


def main() -> int:
    """Runs the whole program. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", choices=tuple(BUDGETS), default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # The matrices are small.
    network, goal = train(arguments.budget, arguments.seed, torch.device(arguments.device))
    final = evaluate(network, arguments.seed + 20_000, num_episodes=20)
    print(f"mean return of 20 new episodes: {final:.1f} (goal {goal:.0f})")
    return 0 if final >= goal else 1


if __name__ == "__main__":
    sys.exit(main())
