# SPDX-License-Identifier: Apache-2.0
"""A run of several processes, from its begin to its end: a server, actors and a learner.

    python examples/evolve.py
    python examples/evolve.py --actors 8 --steps 1000

The learner searches a hidden vector by evolution strategies. An actor adds noise to the newest
weights, and measures how far the sum is from the vector. Each of these trials is an item:

    actors ──── noise and reward ────▶ table "trials" ──── batches ────▶ learner
       ▲                                                                   │
       └──────────── newest weights ◀──── table "weights" ◀────────────────┘
                                             of size 1

How it begins: the parent starts the server and gives its address to the other processes, which may
start in any order. Actors wait for the first weights.

How it ends: the learner has made its steps. The parent sets the event `stop`, which ends the loops
of the actors, and stops the server for good, which ends their calls that wait. Nobody is killed,
and no process waits for one that is gone.

The exit code is 0 only if the search came near the vector and all processes ended by themselves.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import sys
from multiprocessing import connection
from multiprocessing.synchronize import Event
from typing import Any

# The arrays are small: a second BLAS thread would only compete with an actor for a core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import reverb

# A process that needs longer than this to end hangs.
END_S = 60.0


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of a run."""

    num_actors: int = 3
    num_steps: int = 300
    batch_size: int = 64
    dimension: int = 8
    sigma: float = 0.1
    learning_rate: float = 0.02
    # Trials between two looks for new weights.
    trials_per_look: int = 16


def make_tables(config: Config) -> list[reverb.Table]:
    """Returns the trials, each of which is sampled once, and the newest weights."""
    fifo = reverb.selectors.Fifo
    return [
        # Actors wait while the learner has so many trials to go.
        reverb.Table.queue("trials", max_size=4 * config.batch_size),
        # An insert replaces the weights before. A sample waits for the first ones.
        reverb.Table("weights", fifo(), fifo(), 1, reverb.rate_limiters.MinSize(1)),
    ]


def hidden_vector(config: Config) -> np.ndarray:
    """Returns what the run searches, `[dimension]`."""
    return np.random.default_rng(0).normal(size=config.dimension)


def act(config: Config, address: str, stop: Event, seed: int) -> None:
    """Makes trials until the run ends: the process of an actor."""
    client = reverb.Client(address)
    random = np.random.default_rng(seed)
    target = hidden_vector(config)
    try:
        while not stop.is_set():
            weights = client.sample_batch("weights", 1).data[0][0, 0]
            noise = random.normal(size=(config.trials_per_look, config.dimension))
            rewards = -np.sum((weights + config.sigma * noise - target) ** 2, axis=1)
            priorities = {"trials": np.ones(config.trials_per_look)}
            client.insert_batch([noise, rewards], priorities)
    except reverb.errors.UnavailableError:
        # At the end of the run the server is gone for good. Before it, that is an error.
        if not stop.is_set():
            raise


def learn(config: Config, address: str) -> None:
    """Makes the steps of the run, and publishes weights after each: the process of the learner."""
    client = reverb.Client(address)
    weights = np.zeros(config.dimension)
    client.insert([weights], {"weights": 1.0})
    for _ in range(config.num_steps):
        # An item is one step, so the columns are `[batch_size, 1, ...]`.
        batch = client.sample_batch("trials", config.batch_size)
        noise, rewards = (column[:, 0] for column in batch.data)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        weights = weights + config.learning_rate * advantages @ noise / np.sqrt(config.batch_size)
        client.insert([weights], {"weights": 1.0})


def run(config: Config) -> bool:
    """Runs everything. Returns whether the search came near, and whether all processes ended."""
    # A fork of a process with threads, which a server has, is no safe start.
    context = multiprocessing.get_context("spawn")
    server = reverb.Server(make_tables(config))
    address = f"localhost:{server.port}"
    stop = context.Event()
    learner = context.Process(target=learn, args=(config, address), name="learner")
    actors = [
        context.Process(target=act, args=(config, address, stop, seed), name=f"actor {seed}")
        for seed in range(config.num_actors)
    ]
    for process in [*actors, learner]:
        process.start()
    try:
        # The learner ends first; if an actor does, it has failed, and so has the run.
        connection.wait([process.sentinel for process in [*actors, learner]])
        distance = distance_of(config, server)
    finally:
        # First the event, then the server: an actor that hears of the server knows why.
        stop.set()
        server.stop(final=True)
        have_ended = [ends(process) for process in [*actors, learner]]
    print(f"distance to the hidden vector: {distance:.2f}")
    return all(have_ended) and distance < 0.5


def distance_of(config: Config, server: reverb.Server) -> float:
    """Returns how far the newest weights are from the hidden vector."""
    client = server.localhost_client()
    if client.size("weights") == 0:
        return float("inf")
    weights = client.sample_batch("weights", 1).data[0][0, 0]
    return float(np.linalg.norm(weights - hidden_vector(config)))


def ends(process: Any) -> bool:
    """Waits for the end of a process. Returns whether it ended by itself, without an error."""
    process.join(END_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    print(f"{process.name} ended with {process.exitcode}")
    return process.exitcode == 0


def main() -> int:
    """Parses the options; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--actors", type=int, default=Config.num_actors)
    parser.add_argument("--steps", type=int, default=Config.num_steps)
    options = parser.parse_args()
    config = dataclasses.replace(Config(), num_actors=options.actors, num_steps=options.steps)
    return 0 if run(config) else 1


if __name__ == "__main__":
    sys.exit(main())
