# SPDX-License-Identifier: Apache-2.0
"""Learns CartPole with several actor processes, one learner, and a replay server between them.

    python examples/cartpole_dqn.py                  # well under a minute on two cores
    python examples/cartpole_dqn.py --budget quick   # less time, and an easier goal

Read it from top to bottom: the configuration, the tables, what an actor does, what the learner
does, the evaluation. Everything that moves between processes goes through the server:

    actors ── n-step transitions ──▶ table "transitions" ── batches ──▶ learner
       ▲  └── episode returns ─────▶ table "returns" ──── progress ──▶    │  │
       │                                                   priorities ◀───┘  │
       └──────────── newest weights ◀── table "weights" ◀────────────────────┘

The exit code is 0 only if the greedy policy reaches the goal at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import multiprocessing.synchronize
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

# The matrices are small: a second BLAS thread would only compete with an actor for a core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
from progress import Progress, save_picture, terminal_curve
from q_network import Adam, Parameters, gradients, init_parameters, layers_of, q_values

import reverb


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that can be tuned."""

    # The goal and the budget.
    goal: float = 195.0  # mean return of the final evaluation
    good_enough: float = 475.0  # training ends early after two greedy evaluations this good
    max_inserts: int = 400_000
    max_seconds: float = 150.0
    seed: int = 1

    # Actors. Every actor has its own final exploration rate, the first one the highest.
    num_actors: int = 3
    epsilon_first: float = 0.2
    epsilon_last: float = 0.01
    epsilon_decay_steps: int = 2_000  # from 1.0 to an actor's own rate, in its own steps
    weights_period_steps: int = 100  # an actor asks for newer weights this often
    max_unconfirmed_items: int = 40  # how far an actor may run ahead of the server

    # Replay.
    n_step: int = 10
    reward_scale: float = 0.1  # keeps values near 10 and errors near 1, where Huber's loss is round
    max_size: int = 50_000
    min_size_to_sample: int = 1_000
    samples_per_insert: float = 16.0
    priority_exponent: float = 0.6
    initial_priority: float = 1.0
    importance_exponent: float = 0.5

    # Learner.
    batch_size: int = 256
    hidden_units: int = 64
    discount: float = 0.99
    learning_rate: float = 1e-3
    target_rate: float = 0.01  # of the moving average that makes the target network
    publish_period: int = 20  # learner steps between two publications of the weights
    evaluate_period: int = 250  # learner steps between two greedy evaluations


# For CI: enough to distinguish a policy that learned from one that did not. The seconds are
# for a machine that is busy.
QUICK = Config(goal=100.0, good_enough=200.0, max_inserts=60_000, max_seconds=240.0)


# ---- The tables ----------------------------------------------------------------------------------


class Transition(NamedTuple):
    """The data of an item in the table "transitions"; with a leading `[B]` in a batch."""

    observation: np.ndarray  # [4] where the transition starts
    action: np.ndarray  # [] what was done there
    reward: np.ndarray  # [n] the rewards of the n steps
    discount: np.ndarray  # [n] their discounts, 0 where the pole fell
    next_observation: np.ndarray  # [4] n steps later


def make_tables(config: Config) -> list[reverb.Table]:
    """Returns the three tables through which the processes communicate."""
    # The limiter holds the actors back when the learner is slow, and the learner when they are. The
    # buffer is how far the two may drift apart; it must leave room for a batch.
    limiter = reverb.rate_limiters.SampleToInsertRatio(
        samples_per_insert=config.samples_per_insert,
        min_size_to_sample=config.min_size_to_sample,
        error_buffer=config.samples_per_insert * config.min_size_to_sample / 2,
    )
    transitions = reverb.Table(
        "transitions",
        sampler=reverb.selectors.Prioritized(config.priority_exponent),
        remover=reverb.selectors.Fifo(),
        max_size=config.max_size,
        rate_limiter=limiter,
    )
    # A table of one item is a variable: an insert replaces it, and samples read the newest value.
    weights = reverb.Table(
        "weights",
        sampler=reverb.selectors.Lifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    # Each return is read once. If nothing reads, the oldest are evicted, and actors never wait.
    returns = reverb.Table(
        "returns",
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=10_000,
        max_times_sampled=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    return [transitions, weights, returns]


# ---- An actor ------------------------------------------------------------------------------------


def run_actor(
    index: int, address: str, config: Config, stop: multiprocessing.synchronize.Event
) -> None:
    """Plays and writes transitions until `stop` is set. Runs in a process of its own."""
    rng = np.random.default_rng([config.seed, index])
    client = reverb.Client(address)
    writer = client.trajectory_writer(num_keep_alive_refs=config.n_step + 1)
    env = gymnasium.make("CartPole-v1")
    seed: int | None = int(rng.integers(2**31))
    num_steps = 0
    parameters = newest_weights(client)
    while not stop.is_set():
        observation, _ = env.reset(seed=seed)
        seed = None
        episode_return, done = 0.0, False
        while not done and not stop.is_set():
            if num_steps % config.weights_period_steps == 0:
                parameters = newest_weights(client)
            if rng.random() < exploration_rate(config, index, num_steps):
                action = int(rng.integers(2))
            else:
                action = int(q_values(parameters, observation[None])[0].argmax())
            next_observation, reward, terminated, truncated, _ = env.step(action)
            # After a fall there are no more rewards. The limit of 500 steps is not part of the
            # task, so there the value of the last observation still counts.
            discount = 0.0 if terminated else config.discount
            scaled_reward = config.reward_scale * float(reward)
            write_step(writer, config, observation, action, scaled_reward, discount)
            patiently(stop, functools.partial(writer.flush, config.max_unconfirmed_items))
            observation = next_observation
            episode_return += float(reward)
            num_steps += 1
            done = terminated or truncated
        if done:
            pad_episode(writer, config, observation)
            patiently(stop, writer.end_episode)
            client.insert(np.float32(episode_return), {"returns": 1.0})
    # Unconfirmed items are no longer needed, so do not wait for them.
    writer.close()


def exploration_rate(config: Config, index: int, num_steps: int) -> float:
    """Returns the probability of a random action: from 1 down to the actor's final rate."""
    place = index / max(1, config.num_actors - 1)
    lowest = config.epsilon_first ** (1 - place) * config.epsilon_last**place
    progress = min(1.0, num_steps / config.epsilon_decay_steps)
    return 1.0 + progress * (lowest - 1.0)


def write_step(
    writer: reverb.TrajectoryWriter,
    config: Config,
    observation: np.ndarray,
    action: int,
    reward: float,
    discount: float,
) -> None:
    """Appends a step and makes an item of the n steps before it, if there are that many."""
    writer.append(
        {
            "observation": np.asarray(observation, np.float32),
            "action": np.int32(action),
            "reward": np.float32(reward),
            "discount": np.float32(discount),
        }
    )
    if writer.episode_steps <= config.n_step:
        return
    # The columns refer to steps that were sent once; overlapping items share them on the server.
    first, history = -(config.n_step + 1), writer.history
    transition = Transition(
        observation=history["observation"][first],
        action=history["action"][first],
        reward=history["reward"][first:-1],
        discount=history["discount"][first:-1],
        next_observation=history["observation"][-1],
    )
    writer.create_item("transitions", config.initial_priority, transition)


def pad_episode(
    writer: reverb.TrajectoryWriter, config: Config, last_observation: np.ndarray
) -> None:
    """Repeats the last observation, so that n-step transitions start at the last steps too."""
    for _ in range(config.n_step):
        write_step(writer, config, last_observation, action=0, reward=0.0, discount=1.0)


def patiently(stop: multiprocessing.synchronize.Event, call: Callable[..., None]) -> None:
    """Repeats a blocking call until it succeeds or the training ends.

    A rate limiter can delay an actor for any time, so the call has a timeout and is repeated.
    """
    while not stop.is_set():
        try:
            call(timeout_ms=200)
        except reverb.DeadlineExceededError:
            continue
        return


def newest_weights(client: reverb.Client) -> Parameters:
    """Returns the latest parameters of the learner; blocks until there are any."""
    (sample,) = client.sample("weights", emit_timesteps=False)
    return [column[0] for column in sample.data]


# ---- The learner ---------------------------------------------------------------------------------


class Learner:
    """Double DQN (van Hasselt et al., 2016) with prioritized n-step replay."""

    def __init__(self, config: Config, client: reverb.Client) -> None:
        """Starts with random weights and publishes them."""
        self._config = config
        self._client = client
        sizes = [4, config.hidden_units, config.hidden_units, 2]
        self.parameters = init_parameters(sizes, np.random.default_rng(config.seed))
        self._target = [p.copy() for p in self.parameters]
        self._adam = Adam(self.parameters, config.learning_rate)
        self.num_steps = 0
        self._publish()

    def step(self) -> None:
        """Samples a batch, trains on it, and updates its priorities in the table."""
        sample = sample_batch(self._client, "transitions", self._config.batch_size)
        errors = self._train(Transition(*sample.data), self._importance(sample.info))
        self._client.mutate_priorities(
            "transitions",
            updates=dict(zip(sample.info.key.tolist(), errors.tolist(), strict=True)),
        )
        self.num_steps += 1
        if self.num_steps % self._config.publish_period == 0:
            self._publish()

    def _importance(self, info: reverb.SampleInfo) -> np.ndarray:
        """Returns importance weights `[B]`, which correct the bias (Schaul et al., 2016, 3.4)."""
        weights = (info.table_size * info.probability) ** -self._config.importance_exponent
        return (weights / weights.max()).astype(np.float32)

    def _train(self, batch: Transition, importance: np.ndarray) -> np.ndarray:
        """Makes one gradient step. Returns the size `[B]` of the temporal-difference errors."""
        rows = np.arange(len(importance))
        # discounts[:, k] is the discount of a reward k steps ahead.
        discounts = np.cumprod(batch.discount, axis=1)
        rewards = batch.reward[:, 0] + (batch.reward[:, 1:] * discounts[:, :-1]).sum(axis=1)
        best = q_values(self.parameters, batch.next_observation).argmax(axis=1)
        future = q_values(self._target, batch.next_observation)[rows, best]
        target = rewards + discounts[:, -1] * future

        layers = layers_of(self.parameters, batch.observation)
        errors = layers[-1][rows, batch.action] - target
        # The gradient of the Huber loss is the error, clipped to one.
        output_gradient = np.zeros_like(layers[-1])
        output_gradient[rows, batch.action] = importance * np.clip(errors, -1, 1) / len(rows)
        self._adam.update(self.parameters, gradients(self.parameters, layers, output_gradient))
        for old, new in zip(self._target, self.parameters, strict=True):
            old += self._config.target_rate * (new - old)
        return np.abs(errors) + 1e-3

    def _publish(self) -> None:
        self._client.insert(self.parameters, {"weights": 1.0})


def sample_batch(client: reverb.Client, table: str, batch_size: int) -> reverb.ReplaySample:
    """Returns `batch_size` items, every field and column stacked to `[B, ...]`."""
    if hasattr(client, "sample_batch"):
        return client.sample_batch(table, batch_size)
    # The program also runs on dm-reverb, which has no such call.
    infos, data = zip(*client.sample(table, batch_size, emit_timesteps=False), strict=True)
    keys, *others = zip(*infos, strict=True)
    info = reverb.SampleInfo(np.array(keys, np.uint64), *map(np.array, others))
    return reverb.ReplaySample(info, [np.stack(column) for column in zip(*data, strict=True)])


# ---- Evaluation -------- ---------------------------------------------------------------------


def evaluate(parameters: Parameters, num_episodes: int, seed: int) -> float:
    """Returns the mean return of the greedy policy over new episodes."""
    env = gymnasium.make("CartPole-v1")
    total = 0.0
    for episode in range(num_episodes):
        observation, _ = env.reset(seed=seed + episode)
        done = False
        while not done:
            action = int(q_values(parameters, observation[None])[0].argmax())
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            done = terminated or truncated
    return total / num_episodes


# ---- Putting it together -------------------------------------------------------------------------


def train(
    config: Config, client: reverb.Client, learner: Learner, progress: Progress
) -> Parameters:
    """Trains until the policy is good enough or the budget is spent. Returns the best weights."""
    best, best_return, good_in_a_row = learner.parameters, -1.0, 0
    while not progress.budget_is_spent:
        learner.step()
        if progress.update(learner.num_steps):
            read_returns(client, progress)
        if learner.num_steps % config.evaluate_period == 0:
            # A Q-network can get worse again, so the best weights so far are kept.
            value = evaluate(learner.parameters, num_episodes=10, seed=config.seed + 10_000)
            progress.evaluated(value)
            if value >= best_return:
                best, best_return = [p.copy() for p in learner.parameters], value
            good_in_a_row = good_in_a_row + 1 if value >= config.good_enough else 0
            if good_in_a_row == 2:
                break
    return best


def read_returns(client: reverb.Client, progress: Progress) -> None:
    """Records the returns of the episodes that ended since the last call."""
    count = client.server_info()["returns"].current_size
    if count:
        for sample in client.sample("returns", count, emit_timesteps=False):
            progress.episode_ended(float(sample.data[0][0]))


def watch_actors(
    actors: Sequence[multiprocessing.context.SpawnProcess],
    server: reverb.Server,
    stop: multiprocessing.synchronize.Event,
) -> None:
    """Stops the server when an actor dies, so that a waiting learner gets an error."""
    multiprocessing.connection.wait([actor.sentinel for actor in actors])
    if not stop.is_set():
        print("an actor process ended before its time", file=sys.stderr, flush=True)
        server.stop()


def main() -> int:
    """Runs the whole program. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", choices=("full", "quick"), default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("demo_output"))
    arguments = parser.parse_args()
    config = Config() if arguments.budget == "full" else QUICK
    config = dataclasses.replace(config, seed=arguments.seed)

    # The learner runs in the server's process, so its samples need no socket.
    server = reverb.Server(make_tables(config))
    client = server.localhost_client()
    learner = Learner(config, client)
    print(f"server on port {server.port}, {config.num_actors} actor processes", flush=True)

    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    address = f"localhost:{server.port}"
    actors = [
        context.Process(target=run_actor, args=(index, address, config, stop), daemon=True)
        for index in range(config.num_actors)
    ]
    for actor in actors:
        actor.start()
    threading.Thread(target=watch_actors, args=(actors, server, stop), daemon=True).start()
    # Actors insert an item for every step that they play, so the table counts their steps.
    progress = Progress(
        client, "transitions", max_env_steps=config.max_inserts, max_seconds=config.max_seconds
    )
    before = evaluate(learner.parameters, num_episodes=20, seed=config.seed + 30_000)
    try:
        best = train(config, client, learner, progress)
        progress.finish(learner.num_steps)
    finally:
        stop.set()
        for actor in actors:
            actor.join(timeout=5.0)
            if actor.is_alive():
                actor.terminate()
        server.stop()

    picture = arguments.output / "learning_curve.png"
    save_picture(picture, progress, config.goal, "DQN in NumPy on CartPole-v1")
    final = evaluate(best, num_episodes=20, seed=config.seed + 20_000)
    passed = final >= config.goal
    print(terminal_curve(progress, config.goal))
    print(progress.summary())
    print(f"the learning curve is in {picture}")
    print(f"mean return over 20 greedy episodes: {before:.1f} before, {final:.1f} after")
    print(f"{'PASSED' if passed else 'FAILED'}: the goal is {config.goal:g}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
