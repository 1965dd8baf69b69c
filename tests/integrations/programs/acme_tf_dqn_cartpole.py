# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow DQN agent of Acme balances a pole.

A prioritized table, an n-step adder, Acme's dataset, and priorities written back. Runs with any
`reverb` and with dm-acme 0.4.0 or newer. Prints one line of JSON; fails if the mean return of 20
episodes does not get to --target.
"""

import argparse
import json
import sys
import time

import acme
import cartpole_env
import numpy as np
import sonnet as snt
import tensorflow as tf
from acme import specs
from acme.agents.tf import dqn
from acme.utils import loggers


class Rows(loggers.Logger):
    """Keeps what is logged."""

    def __init__(self):
        self.rows = []

    def write(self, values):
        self.rows.append(dict(values))

    def close(self):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=400, help="at most")
    parser.add_argument("--target", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tf.random.set_seed(arguments.seed)
    np.random.seed(arguments.seed)

    env = cartpole_env.make_dm_env(arguments.seed)
    spec = specs.make_environment_spec(env)
    network = snt.Sequential([snt.Flatten(), snt.nets.MLP([64, 64, spec.actions.num_values])])
    agent = dqn.DQN(
        environment_spec=spec,
        network=network,
        batch_size=64,
        prefetch_size=2,
        target_update_period=100,
        samples_per_insert=32.0,
        min_replay_size=200,
        max_replay_size=20_000,
        n_step=3,
        epsilon=0.1,
        learning_rate=1e-3,
        discount=0.99,
        logger=Rows(),
        checkpoint=False,
    )
    log = Rows()
    loop = acme.EnvironmentLoop(env, agent, logger=log, should_update=True)
    started = time.monotonic()
    for episode in range(1, arguments.episodes + 1):
        loop.run(num_episodes=1)
        if episode >= 20 and mean_return(log.rows[-20:]) >= arguments.target:
            break
        if episode % 25 == 0:
            print(f"episode {episode}: mean of 25 returns {mean_return(log.rows[-25:]):.1f}")
    seconds = time.monotonic() - started
    final = mean_return(log.rows[-20:])
    steps = sum(float(row["episode_return"]) for row in log.rows)
    told = {
        "episodes": len(log.rows),
        "return": f"{mean_return(log.rows[:20]):.0f} -> {final:.0f}",
        "steps/s": round(steps / seconds),
    }
    print(json.dumps(told))
    sys.exit(final < arguments.target)


def mean_return(rows):
    return float(np.mean([float(row["episode_return"]) for row in rows]))


if __name__ == "__main__":
    main()
