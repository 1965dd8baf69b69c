# SPDX-License-Identifier: Apache-2.0
"""Acme's DQN learns CartPole through a prioritized table of n-step transitions.

    python examples/acme_dqn.py                   # a minute or two on two cores
    python examples/acme_dqn.py --budget quick    # less time, and an easier goal

Read it from top to bottom: the configuration, the environment, the agent, the training, the
evaluation. All parts are Acme's own: the adder that writes transitions, the dataset that reads
batches, the learner that updates their priorities. It needs dm-acme 0.4.0 with a TensorFlow that
dm-reverb 0.14 does not support.

    environment loop ──▶ adder ── n-step transitions ──▶ table ── batches ──▶ learner
          ▲                                                ▲                   │   │
          │                                                └──── priorities ───┘   │
          └─────────────────────────── Q-network ◀─────────────────────────────────┘

The exit code is 0 only if the greedy policy reaches the goal at the end.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import pathlib
import sys
from typing import Any

import before_acme  # noqa: F401

# isort: split
import acme
import dm_env
import numpy as np
import sonnet as snt
import tensorflow as tf
from acme import datasets
from acme import specs as acme_specs
from acme.adders import reverb as adders
from acme.agents import agent as acme_agent
from acme.agents.tf import actors, dqn
from acme.tf import utils as tf2_utils
from acme.utils import counting, loggers, observers
from cart_pole import CartPole, mean_return
from dm_env import specs
from progress import Progress, save_picture, terminal_curve

import reverb

tf.get_logger().setLevel("ERROR")

TABLE = adders.DEFAULT_PRIORITY_TABLE


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that can be tuned."""

    # The goal and the budget.
    goal: float = 195.0  # mean return of the final evaluation
    good_enough: float = 250.0  # training ends early after greedy evaluations this good ...
    good_in_a_row: int = 2  # ... this many times in a row
    max_env_steps: int = 20_000
    max_seconds: float = 240.0
    seed: int = 1

    # Acting.
    epsilon_first: float = 1.0
    epsilon_last: float = 0.05
    epsilon_decay_steps: int = 3_000

    # Replay.
    n_step: int = 3
    max_size: int = 50_000
    min_size_to_sample: int = 500
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4

    # Learning.
    env_steps_per_batch: int = 2
    batch_size: int = 128
    hidden_units: int = 64
    discount: float = 0.99
    reward_scale: float = 0.1  # keeps values near 10 and errors near 1, where Huber's loss is round
    learning_rate: float = 1e-3
    target_update_period: int = 100
    evaluate_period_steps: int = 1_000  # environment steps between two greedy evaluations


# For CI: enough to distinguish a policy that learned from one that did not. The seconds are
# for a machine that is busy.
QUICK = Config(
    goal=150.0,
    good_enough=200.0,
    good_in_a_row=1,
    max_env_steps=5_000,
    max_seconds=240.0,
    evaluate_period_steps=500,
)


# ---- The environment -----------------------------------------------------------------------------


class CartPoleEnvironment(dm_env.Environment):
    """CartPole with the interface that Acme requires."""

    def __init__(self, seed: int, reward_scale: float) -> None:
        """Makes the game; Acme calls the rest."""
        self._game = CartPole(seed)
        self._reward = np.float32(reward_scale)

    def observation_spec(self) -> specs.Array:
        """Position, velocity, angle, spin."""
        return specs.Array((4,), np.float32, "observation")

    def action_spec(self) -> specs.DiscreteArray:
        """Left or right."""
        return specs.DiscreteArray(2, np.int32, "action")

    def reward_spec(self) -> specs.Array:
        """The same for each step."""
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Zero after the pole fell."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return dm_env.restart(self._game.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Plays a step. Acme's loop calls `reset` after the last step of an episode."""
        observation, fell, time_is_up = self._game.step(int(action))
        # After a fall there are no more rewards. The limit of 500 steps is not part of the task, so
        # there the discount stays 1 and the value of the last observation still counts.
        step_type = dm_env.StepType.LAST if fell or time_is_up else dm_env.StepType.MID
        return dm_env.TimeStep(step_type, self._reward, np.float32(not fell), observation)


# ---- The agent -----------------------------------------------------------------------------------


class Parts:
    """A server, and the parts of Acme around it."""

    def __init__(self, config: Config, env: CartPoleEnvironment) -> None:
        """Starts the server and builds the agent."""
        spec = acme_specs.make_environment_spec(env)
        table = reverb.Table(
            TABLE,
            sampler=reverb.selectors.Prioritized(config.priority_exponent),
            remover=reverb.selectors.Fifo(),
            max_size=config.max_size,
            # Acting and learning alternate in one thread, so the limiter must never wait.
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=adders.NStepTransitionAdder.signature(spec),
        )
        self.server = reverb.Server([table])
        self.client = reverb.Client(f"localhost:{self.server.port}")

        units = (config.hidden_units, config.hidden_units, spec.actions.num_values)
        self.network = snt.nets.MLP(units)
        target_network = copy.deepcopy(self.network)
        tf2_utils.create_variables(self.network, [spec.observations])
        tf2_utils.create_variables(target_network, [spec.observations])

        # The actor shares the variables of the learner; its exploration decays with the steps.
        self.epsilon = tf.Variable(config.epsilon_first)
        actor = actors.FeedForwardActor(
            snt.Sequential([self.network, self._explore]),
            adders.NStepTransitionAdder(self.client, config.n_step, config.discount),
        )
        dataset = datasets.make_reverb_dataset(
            self.client.server_address,
            batch_size=config.batch_size,
            prefetch_size=2,
            # Number of parallel samplers. Small batches need no more than two.
            num_parallel_calls=2,
        )
        self.counter = counting.Counter()
        learner = dqn.DQNLearner(
            self.network,
            target_network,
            discount=config.discount,
            importance_sampling_exponent=config.importance_exponent,
            learning_rate=config.learning_rate,
            target_update_period=config.target_update_period,
            dataset=dataset,
            # Updates the priorities in the table, in the background.
            replay_client=self.client,
            counter=counting.Counter(self.counter, "learner"),
            logger=loggers.NoOpLogger(),
            checkpoint=False,
        )
        self.agent = acme_agent.Agent(
            actor,
            learner,
            min_observations=config.min_size_to_sample,
            observations_per_step=config.env_steps_per_batch,
        )

    @property
    def learner_steps(self) -> int:
        """Number of batches that the learner has used."""
        return int(self.counter.get_counts().get("learner_steps", 0))

    def evaluate(self, num_episodes: int, seed: int) -> float:
        """Returns the mean return of the greedy policy over episodes from the given seed on."""
        return mean_return(
            lambda observations: self.network(tf.constant(observations)).numpy().argmax(axis=1),
            num_episodes,
            seed,
        )

    def variables(self) -> list[np.ndarray]:
        """Returns a copy of the network's weights."""
        return [variable.numpy() for variable in self.network.variables]

    def restore(self, variables: list[np.ndarray]) -> None:
        """Puts weights back."""
        for variable, value in zip(self.network.variables, variables, strict=True):
            variable.assign(value)

    def _explore(self, q_values: tf.Tensor) -> tf.Tensor:
        """Returns the best action, or with probability `epsilon` a random one."""
        greedy = tf.argmax(q_values, axis=-1, output_type=tf.int32)
        anything = tf.random.uniform(tf.shape(greedy), maxval=2, dtype=tf.int32)
        return tf.where(tf.random.uniform(tf.shape(greedy)) < self.epsilon, anything, greedy)


# ---- Training ------------------------------------------------------------------------------------


class Watch(observers.EnvLoopObserver):
    """An observer of Acme's loop that decays the exploration rate and reports progress."""

    def __init__(self, config: Config, parts: Parts, progress: Progress) -> None:
        """Counts from zero."""
        self._config = config
        self._parts = parts
        self._progress = progress
        self.env_steps = 0

    def observe_first(self, env: dm_env.Environment, timestep: dm_env.TimeStep) -> None:
        """Does nothing: no step was played yet."""

    def observe(
        self, env: dm_env.Environment, timestep: dm_env.TimeStep, action: np.ndarray
    ) -> None:
        """Counts a step."""
        config = self._config
        self.env_steps += 1
        decayed = min(1.0, self.env_steps / config.epsilon_decay_steps)
        self._parts.epsilon.assign(
            config.epsilon_first + decayed * (config.epsilon_last - config.epsilon_first)
        )
        self._progress.update(self._parts.learner_steps, self.env_steps)

    def get_metrics(self) -> dict[str, Any]:
        """Returns no metrics for the loop's logger."""
        return {}


def train(config: Config, env: CartPoleEnvironment, parts: Parts, progress: Progress) -> None:
    """Trains until the policy is good enough or the budget is spent; leaves the best weights."""
    watch = Watch(config, parts, progress)
    loop = acme.EnvironmentLoop(
        env, parts.agent, counter=parts.counter, logger=loggers.NoOpLogger(), observers=[watch]
    )
    best, best_return, good_in_a_row = parts.variables(), -1.0, 0
    next_evaluation = config.evaluate_period_steps
    while good_in_a_row < config.good_in_a_row and not progress.budget_is_spent:
        result = loop.run_episode()
        progress.episode_ended(float(result["episode_length"]), watch.env_steps)
        if watch.env_steps < next_evaluation and not progress.budget_is_spent:
            continue
        next_evaluation = watch.env_steps + config.evaluate_period_steps
        value = parts.evaluate(num_episodes=10, seed=config.seed + 10_000)
        progress.evaluated(value)
        # A Q-network can get worse again, so the best weights so far are kept.
        if value >= best_return:
            best, best_return = parts.variables(), value
        good_in_a_row = good_in_a_row + 1 if value >= config.good_enough else 0
    parts.restore(best)
    progress.finish(parts.learner_steps, watch.env_steps)


def main() -> int:
    """Runs the whole program. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", choices=("full", "quick"), default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("demo_output"))
    arguments = parser.parse_args()
    config = Config() if arguments.budget == "full" else QUICK
    config = dataclasses.replace(config, seed=arguments.seed)
    tf.random.set_seed(config.seed)
    np.random.seed(config.seed)

    env = CartPoleEnvironment(config.seed, config.reward_scale)
    parts = Parts(config, env)
    progress = Progress(
        parts.client, TABLE, max_env_steps=config.max_env_steps, max_seconds=config.max_seconds
    )
    print(f"Acme's DQN, table {TABLE!r} at {parts.client.server_address}, TF {tf.__version__}")
    try:
        before = parts.evaluate(num_episodes=20, seed=config.seed + 20_000)
        progress.evaluated(before)
        train(config, env, parts, progress)
    finally:
        parts.server.stop()

    after = parts.evaluate(num_episodes=20, seed=config.seed + 30_000)
    picture = arguments.output / "acme_dqn.png"
    save_picture(picture, progress, config.goal, "Acme DQN on CartPole")
    print(terminal_curve(progress, config.goal))
    print(progress.summary())
    print(f"the learning curve is in {picture}")
    print(f"mean return over 20 greedy episodes: {before:.1f} before, {after:.1f} after")
    passed = after >= config.goal
    print(f"{'PASSED' if passed else 'FAILED'}: the goal is {config.goal:g}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
