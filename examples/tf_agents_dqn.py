# SPDX-License-Identifier: Apache-2.0
"""TF-Agents learns CartPole with its own replay buffer and observer, over `import reverb`.

    python examples/tf_agents_dqn.py                    # a minute or two on two cores
    python examples/tf_agents_dqn.py --budget quick     # less time, and an easier goal
    python examples/tf_agents_dqn.py --adapters         # buffer and observer of reverb.adapters

Read it from top to bottom: the configuration, the environment, the agent, the replay, the training,
the evaluation. Nothing here is special to this package: the same file runs on dm-reverb 0.14. It
needs TF-Agents 0.19, with TensorFlow 2.15 or a newer one.

    driver ── frames ──▶ observer ── sequences ──▶ table "replay" ── batches ──▶ agent
       ▲                                                                           │
       └───────────────────────────── collect policy ◀─────────────────────────────┘

The exit code is 0 only if the greedy policy reaches the goal at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys

import before_tensorflow  # noqa: F401

# isort: split
import numpy as np
import tensorflow as tf
from cart_pole import CartPole, mean_return
from progress import Progress, save_picture, terminal_curve
from tf_agents.agents.dqn import dqn_agent
from tf_agents.drivers import py_driver
from tf_agents.environments import py_environment
from tf_agents.networks import sequential
from tf_agents.policies import py_tf_eager_policy
from tf_agents.specs import array_spec, tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
from tf_agents.utils import common

import reverb

tf.get_logger().setLevel("ERROR")

TABLE = "replay"


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

    # Collecting.
    initial_steps: int = 1_000  # played before the first batch is learned from
    steps_per_round: int = 8  # then the driver plays this many steps ...
    epsilon_first: float = 1.0
    epsilon_last: float = 0.05
    epsilon_decay_steps: int = 3_000

    # Replay.
    n_step: int = 10
    max_size: int = 50_000

    # Learning.
    batch_size: int = 256  # ... and the agent learns from one batch
    hidden_units: int = 64
    discount: float = 0.99
    reward_scale: float = 0.1  # keeps values near 10 and errors near 1, where Huber's loss is round
    learning_rate: float = 1e-3
    target_rate: float = 0.01  # of the moving average that makes the target network
    evaluate_period_steps: int = 1_000  # environment steps between two greedy evaluations


# For CI: enough to distinguish a policy that learned from one that did not. The seconds are
# for a machine that is busy.
QUICK = Config(
    goal=150.0,
    good_enough=200.0,
    good_in_a_row=1,
    # Most runs are good enough after 2,000 to 4,000; 5,000 were too few for one of three.
    max_env_steps=10_000,
    max_seconds=300.0,
    initial_steps=500,
    evaluate_period_steps=500,
)


# ---- The environment -----------------------------------------------------------------------------


class CartPoleEnvironment(py_environment.PyEnvironment):
    """CartPole with the interface that TF-Agents requires."""

    def __init__(self, seed: int) -> None:
        """Makes the game; TF-Agents calls the rest."""
        super().__init__()
        self._game = CartPole(seed)

    def observation_spec(self) -> array_spec.ArraySpec:
        """Position, velocity, angle, spin."""
        return array_spec.ArraySpec((4,), np.float32, "observation")

    def action_spec(self) -> array_spec.BoundedArraySpec:
        """Left or right."""
        return array_spec.BoundedArraySpec((), np.int64, 0, 1, "action")

    def _reset(self) -> ts.TimeStep:
        return ts.restart(self._game.reset())

    def _step(self, action: np.ndarray) -> ts.TimeStep:
        if self._current_time_step.is_last():
            return self.reset()
        observation, fell, time_is_up = self._game.step(int(action))
        # After a fall there are no more rewards. The limit of 500 steps is not part of the task, so
        # there the discount stays 1 and the value of the last observation still counts.
        if fell:
            return ts.termination(observation, reward=1.0)
        if time_is_up:
            return ts.truncation(observation, reward=1.0)
        return ts.transition(observation, reward=1.0)


# ---- The agent -----------------------------------------------------------------------------------


def make_agent(
    config: Config, env: CartPoleEnvironment, env_steps: tf.Variable
) -> dqn_agent.DdqnAgent:
    """Returns a double DQN agent with n-step returns; `env_steps` drives its exploration."""
    hidden = [tf.keras.layers.Dense(config.hidden_units, activation="relu") for _ in range(2)]
    agent = dqn_agent.DdqnAgent(
        tensor_spec.from_spec(env.time_step_spec()),
        tensor_spec.from_spec(env.action_spec()),
        q_network=sequential.Sequential([*hidden, tf.keras.layers.Dense(2)]),
        optimizer=tf.keras.optimizers.Adam(config.learning_rate),
        epsilon_greedy=lambda: exploration_rate(config, env_steps),
        n_step_update=config.n_step,
        target_update_tau=config.target_rate,
        target_update_period=1,
        td_errors_loss_fn=common.element_wise_huber_loss,
        gamma=config.discount,
        reward_scale_factor=config.reward_scale,
        gradient_clipping=10.0,
        train_step_counter=tf.Variable(0, dtype=tf.int64),
    )
    agent.initialize()
    return agent


def exploration_rate(config: Config, env_steps: tf.Variable) -> tf.Tensor:
    """Returns the probability of a random action: 1 during the first steps, then decaying."""
    decayed = tf.cast(env_steps - config.initial_steps, tf.float32) / config.epsilon_decay_steps
    progress = tf.clip_by_value(decayed, 0.0, 1.0)
    return config.epsilon_first + progress * (config.epsilon_last - config.epsilon_first)


# ---- The replay ----------------------------------------------------------------------------------


class Replay:
    """A server with one table, its writer and its reader."""

    def __init__(self, config: Config, data_spec: trajectory.Trajectory, adapters: bool) -> None:
        """Starts the server.

        Args:
          config: Sizes.
          data_spec: Spec of one step of the agent's data.
          adapters: Uses buffer and observer of `reverb.adapters` instead of TF-Agents'.
        """
        if adapters:
            from reverb.adapters.tf_agents import reverb_replay_buffer, reverb_utils
        else:
            from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils

        # n steps and the observation after them.
        length = config.n_step + 1
        table = reverb.Table(
            TABLE,
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=config.max_size,
            # Collecting and learning alternate in one thread, so the limiter must never wait.
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=tensor_spec.add_outer_dim(data_spec, length),
        )
        self._server = reverb.Server([table])
        self.buffer = reverb_replay_buffer.ReverbReplayBuffer(
            data_spec, TABLE, sequence_length=length, local_server=self._server
        )
        # With padding, sequences begin at the last steps of an episode too.
        self.observer = reverb_utils.ReverbAddTrajectoryObserver(
            self.buffer.py_client,
            TABLE,
            sequence_length=length,
            pad_end_of_episodes=True,
            tile_end_of_episodes=True,
        )
        dataset = self.buffer.as_dataset(
            sample_batch_size=config.batch_size, num_steps=length, num_parallel_calls=2
        )
        self.batches = iter(dataset.prefetch(3))

    def close(self) -> None:
        """Closes the writer before the server, so that it does not wait for the server."""
        self.observer.close()
        self._server.stop()


# ---- Training ------------------------------------------------------------------------------------


class Trainer:
    """Alternates between playing and learning."""

    def __init__(
        self,
        config: Config,
        agent: dqn_agent.DdqnAgent,
        replay: Replay,
        progress: Progress,
        env_steps: tf.Variable,
    ) -> None:
        """Makes a trainer that updates the variables of the agent and counts `env_steps`."""
        self._config = config
        self._agent = agent
        self._env_steps = env_steps
        self._progress = progress
        self._batches = replay.batches
        self._observers = [replay.observer, self._watch]
        self._episode_return = 0.0
        self._learn = tf.function(self._learn_from_batch)
        self._choose = tf.function(agent.policy.action)

    def run(self, env: CartPoleEnvironment) -> list[np.ndarray]:
        """Trains until the policy is good enough or the budget is spent.

        Returns:
          The variables of the best policy. A Q-network can get worse again, so the last policy is
          not always the best.
        """
        config, progress, env_steps = self._config, self._progress, self._env_steps
        policy = py_tf_eager_policy.PyTFEagerPolicy(
            self._agent.collect_policy, use_tf_function=True
        )
        driver = py_driver.PyDriver(env, policy, self._observers, max_steps=config.steps_per_round)
        time_step, policy_state = env.reset(), policy.get_initial_state()
        best, best_return, good_in_a_row = self._variables(), -1.0, 0
        next_evaluation = config.initial_steps + config.evaluate_period_steps
        while good_in_a_row < config.good_in_a_row and not progress.budget_is_spent:
            time_step, policy_state = driver.run(time_step, policy_state)
            env_steps.assign_add(config.steps_per_round)
            progress.update(int(self._agent.train_step_counter), int(env_steps))
            if env_steps < config.initial_steps:
                continue
            self._learn()
            if env_steps < next_evaluation and not progress.budget_is_spent:
                continue
            next_evaluation = int(env_steps) + config.evaluate_period_steps
            value = self.evaluate(num_episodes=10, seed=config.seed + 10_000)
            progress.evaluated(value)
            if value >= best_return:
                best, best_return = self._variables(), value
            good_in_a_row = good_in_a_row + 1 if value >= config.good_enough else 0
        return best

    def evaluate(self, num_episodes: int, seed: int) -> float:
        """Returns the mean return of the greedy policy over episodes from the given seed on."""
        no_reward = tf.zeros(num_episodes)

        def choose(observations: np.ndarray) -> np.ndarray:
            step = ts.transition(tf.constant(observations), no_reward)
            return self._choose(step).action.numpy()

        return mean_return(choose, num_episodes, seed)

    def restore(self, variables: list[np.ndarray]) -> None:
        """Restores the variables of a policy."""
        for variable, value in zip(self._agent.policy.variables(), variables, strict=True):
            variable.assign(value)

    def _variables(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self._agent.policy.variables()]

    def _learn_from_batch(self) -> None:
        # In a `tf.function`: TensorFlow reads the dataset and trains without Python in between.
        experience, _ = next(self._batches)
        self._agent.train(experience)

    def _watch(self, frame: trajectory.Trajectory) -> None:
        """An observer that sums up rewards."""
        if frame.is_boundary():
            self._progress.episode_ended(self._episode_return, int(self._env_steps))
            self._episode_return = 0.0
        else:
            self._episode_return += float(frame.reward)


def main() -> int:
    """Runs the whole program. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", choices=("full", "quick"), default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--adapters", action="store_true", help="use reverb.adapters.tf_agents")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("demo_output"))
    arguments = parser.parse_args()
    config = Config() if arguments.budget == "full" else QUICK
    config = dataclasses.replace(config, seed=arguments.seed)
    tf.keras.utils.set_random_seed(config.seed)

    env = CartPoleEnvironment(config.seed)
    env_steps = tf.Variable(0, dtype=tf.int64)
    agent = make_agent(config, env, env_steps)
    replay = Replay(config, agent.collect_data_spec, arguments.adapters)
    progress = Progress(
        replay.buffer.py_client,
        TABLE,
        max_env_steps=config.max_env_steps,
        max_seconds=config.max_seconds,
    )
    trainer = Trainer(config, agent, replay, progress, env_steps)
    buffer_class = f"{type(replay.buffer).__module__}.{type(replay.buffer).__name__}"
    print(
        f"{buffer_class} at {replay.buffer.py_client.server_address}, TensorFlow {tf.__version__}"
    )
    try:
        before = trainer.evaluate(num_episodes=20, seed=config.seed + 20_000)
        progress.evaluated(before)
        trainer.restore(trainer.run(env))
        progress.finish(int(agent.train_step_counter), int(env_steps))
    finally:
        replay.close()
    return report(config, progress, before, trainer, arguments.output / "tf_agents_dqn.png")


def report(
    config: Config, progress: Progress, before: float, trainer: Trainer, picture: pathlib.Path
) -> int:
    """Evaluates on new episodes and prints the result. Returns the exit code."""
    after = trainer.evaluate(num_episodes=20, seed=config.seed + 30_000)
    save_picture(picture, progress, config.goal, "TF-Agents DQN on CartPole")
    print(terminal_curve(progress, config.goal))
    print(progress.summary())
    print(f"the learning curve is in {picture}")
    print(f"mean return over 20 greedy episodes: {before:.1f} before, {after:.1f} after")
    passed = after >= config.goal
    print(f"{'PASSED' if passed else 'FAILED'}: the goal is {config.goal:g}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
