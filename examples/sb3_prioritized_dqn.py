# SPDX-License-Identifier: Apache-2.0
"""Learns CartPole with the DQN of Stable-Baselines3, from a prioritized table.

    python examples/sb3_prioritized_dqn.py                  # about a minute on two cores
    python examples/sb3_prioritized_dqn.py --budget quick   # less time, and an easier goal

The DQN of Stable-Baselines3 has no place for priorities: `PrioritizedDQN` is its `train`, with
importance weights in the loss, and errors as the new priorities. The exit code is 0 only if the
greedy policy reaches the goal.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy

import reverb
from reverb.adapters.sb3 import ReverbReplayBuffer

PRIORITY_EXPONENT = 0.6
# Goal of the final evaluation, steps of the environment, and seconds on a machine that is busy.
BUDGETS = {"full": (195.0, 60_000, 180.0), "quick": (100.0, 40_000, 180.0)}
EVALUATE_PERIOD = 5_000  # steps


class PrioritizedDQN(DQN):
    """DQN with prioritized replay ("Prioritized Experience Replay")."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Does so many gradient steps, each on a batch of the buffer."""
        buffer = self.replay_buffer
        assert isinstance(buffer, ReverbReplayBuffer)
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        beta = reverb.schedules.linear(0.4, 1.0, steps=self._total_timesteps)
        losses = []
        for _ in range(gradient_steps):
            data = buffer.sample(batch_size, env=self._vec_normalize_env)
            keys = buffer.info.key
            weights = buffer.importance_weights(beta(self.num_timesteps))
            discounts = self.gamma if data.discounts is None else data.discounts
            with torch.no_grad():
                following = self.q_net_target(data.next_observations).max(dim=1, keepdim=True)[0]
                target = data.rewards + (1 - data.dones) * discounts * following
            values = self.q_net(data.observations).gather(1, data.actions.long())
            loss = torch.nn.functional.smooth_l1_loss(values, target, reduction="none")
            loss = (weights * loss).mean()
            losses.append(loss.item())
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            errors = (target - values.detach()).abs().flatten()
            buffer.update_priorities(keys, errors.cpu().numpy() + 1e-3)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))


class UntilGoal(BaseCallback):
    """Evaluates the greedy policy now and then, and stops at the goal or when time is up."""

    def __init__(self, goal: float, seconds: float) -> None:
        super().__init__()
        self.best = 0.0
        self._goal = goal
        self._ends = time.monotonic() + seconds

    def _on_step(self) -> bool:
        if self.num_timesteps % EVALUATE_PERIOD:
            return True
        mean = evaluate(self.model)
        if mean > self.best:
            self.best = mean
        print(f"step {self.num_timesteps:6d}: mean return {mean:5.1f}", flush=True)
        return mean < self._goal and time.monotonic() < self._ends


def evaluate(model: DQN) -> float:
    """Returns the mean return of ten episodes of the greedy policy."""
    mean, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=10, warn=False)
    return float(mean)


def main() -> int:
    """Returns 0 if the goal was reached."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", choices=BUDGETS, default="full")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    goal, steps, seconds = BUDGETS[arguments.budget]
    torch.set_num_threads(1)
    model = PrioritizedDQN(
        "MlpPolicy",
        "CartPole-v1",
        replay_buffer_class=ReverbReplayBuffer,
        replay_buffer_kwargs={"priority_exponent": PRIORITY_EXPONENT},
        # As in the zoo of Stable-Baselines3.
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1_000,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=arguments.seed,
        device="cpu",
    )
    callback = UntilGoal(goal, seconds)
    started = time.monotonic()
    model.learn(steps, callback=callback)
    mean = callback.best
    took = time.monotonic() - started
    is_reached = mean >= goal
    print(f"mean return {mean:.1f} after {took:.0f} s; the goal is {goal}: ", end="")
    print("reached" if is_reached else "missed")
    model.replay_buffer.close()
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
