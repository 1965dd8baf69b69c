# SPDX-License-Identifier: Apache-2.0
"""The JAX DQN agent of dm-acme 0.4.0 balances a pole.

A SampleToInsertRatio rate limiter, a prioritized table, an n-step adder, Acme's dataset, and
priorities written back by another thread. Runs with any `reverb`. Prints one line of JSON; fails if
the mean return of 20 episodes does not get to --target.
"""

import cartpole_env
import haiku as hk
import jax_compat  # noqa: F401 - before anything of acme.jax.
from acme import specs
from acme.agents.jax import dqn
from acme.jax import networks as networks_lib
from acme.jax import utils
from acme_until_target import parsed_arguments, play_until_target


def main():
    arguments = parsed_arguments(__doc__)

    env = cartpole_env.make_dm_env(arguments.seed)
    spec = specs.make_environment_spec(env)
    agent = dqn.DQN(
        environment_spec=spec,
        network=make_network(spec),
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
        seed=arguments.seed,
    )
    play_until_target(env, agent, arguments)


def make_network(spec):
    """A perceptron that gives a value for each action."""
    network = hk.without_apply_rng(
        hk.transform(lambda x: hk.nets.MLP([64, 64, spec.actions.num_values])(x))
    )
    observation = utils.add_batch_dim(utils.zeros_like(spec.observations))
    return networks_lib.FeedForwardNetwork(
        init=lambda key: network.init(key, observation), apply=network.apply
    )


if __name__ == "__main__":
    main()
