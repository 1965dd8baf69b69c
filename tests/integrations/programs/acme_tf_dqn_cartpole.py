# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow DQN agent of Acme balances a pole.

A prioritized table, an n-step adder, Acme's dataset, and priorities written back. Runs with any
`reverb` and with dm-acme 0.4.0 or newer. Prints one line of JSON; fails if the mean return of 20
episodes does not get to --target.
"""

import cartpole_env
import numpy as np
import sonnet as snt
import tensorflow as tf
from acme import specs
from acme.agents.tf import dqn
from acme_until_target import Rows, parsed_arguments, play_until_target


def main():
    arguments = parsed_arguments(__doc__)
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
    play_until_target(env, agent, arguments)


if __name__ == "__main__":
    main()
