# SPDX-License-Identifier: Apache-2.0
"""A JAX agent of dm-acme 0.4.0 acts and learns for a short while.

    python acme_jax_smoke.py sac

sac, td3 and d4pg write n-step transitions, r2d2 prioritized sequences; ppo and impala use tables
whose items are sampled once. Runs with any `reverb`. Prints one line of JSON; fails if the agent
did not learn at least --target times.
"""

import argparse
import json
import sys
import time

import acme
import jax_compat  # noqa: F401 - before anything of acme.jax.
from acme import specs, wrappers
from acme.testing import fakes
from acme.utils import counting, loggers

CONTINUOUS_STEPS, ATARI_STEPS = 600, 200


class Silence(loggers.Logger):
    def write(self, values):
        pass

    def close(self):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent", choices=sorted(AGENTS))
    parser.add_argument("--target", type=int, default=1)
    arguments = parser.parse_args()

    make_agent, make_env, steps = AGENTS[arguments.agent]
    env = make_env()
    counter = counting.Counter()
    # At once: by default the counts of the learner are passed on now and then.
    learner_counter = counting.Counter(counter, "learner", time_delta=0)
    agent = make_agent(specs.make_environment_spec(env), learner_counter)
    loop = acme.EnvironmentLoop(env, agent, counter=counter, logger=Silence())
    started = time.monotonic()
    loop.run(num_steps=steps)
    counts = counter.get_counts()
    told = {
        "steps": counts["steps"],
        "learner steps": counts.get("learner_steps", 0),
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(told))
    sys.exit(told["learner steps"] < arguments.target)


def continuous():
    env = fakes.ContinuousEnvironment(
        bounded=True, action_dim=2, observation_dim=4, episode_length=20
    )
    return wrappers.CanonicalSpecWrapper(env, clip=True)


def atari():
    return fakes.fake_atari_wrapped(episode_length=20, oar_wrapper=True)


def make_sac(spec, counter):
    from acme.agents.jax import sac

    config = sac.SACConfig(batch_size=16, min_replay_size=64, samples_per_insert=16)
    return sac.SAC(spec, sac.make_networks(spec), config, seed=0, counter=counter)


def make_td3(spec, counter):
    from acme.agents.jax import td3

    config = td3.TD3Config(batch_size=16, min_replay_size=64, samples_per_insert=16)
    return td3.TD3(spec, td3.make_networks(spec), config, seed=0, counter=counter)


def make_d4pg(spec, counter):
    from acme.agents.jax import d4pg

    config = d4pg.D4PGConfig(batch_size=16, min_replay_size=64, samples_per_insert=16)
    networks = d4pg.make_networks(spec, policy_layer_sizes=(16, 16), critic_layer_sizes=(16, 16))
    return d4pg.D4PG(spec, networks, config, random_seed=0, counter=counter)


def make_ppo(spec, counter):
    from acme.agents.jax import ppo

    config = ppo.PPOConfig(unroll_length=8, num_minibatches=2, num_epochs=2, batch_size=8)
    return ppo.PPO(
        spec, ppo.make_gym_networks(spec), config, seed=0, counter=counter, logger=Silence()
    )


def make_r2d2(spec, counter):
    from acme.agents.jax import r2d2

    config = r2d2.R2D2Config(
        batch_size=4,
        trace_length=8,
        burn_in_length=2,
        sequence_period=4,
        min_replay_size=20,
        samples_per_insert=1.0,
        # This agent waits for 128 steps before it learns; until then its inserts may not block.
        samples_per_insert_tolerance_rate=10.0,
        prefetch_size=1,
    )
    networks = r2d2.make_atari_networks(config.batch_size, spec)
    return r2d2.R2D2(spec, networks, config, seed=0, counter=counter)


def make_impala(spec, counter):
    from acme.agents.jax import impala

    config = impala.IMPALAConfig(batch_size=2, sequence_length=5, sequence_period=5)
    networks = impala.make_atari_networks(spec)
    return impala.IMPALAFromConfig(
        environment_spec=spec,
        forward_fn=networks.forward_fn,
        unroll_init_fn=networks.unroll_init_fn,
        unroll_fn=networks.unroll_fn,
        initial_state_init_fn=networks.initial_state_init_fn,
        initial_state_fn=networks.initial_state_fn,
        config=config,
        counter=counter,
        logger=Silence(),
    )


AGENTS = {
    "sac": (make_sac, continuous, CONTINUOUS_STEPS),
    "td3": (make_td3, continuous, CONTINUOUS_STEPS),
    "d4pg": (make_d4pg, continuous, CONTINUOUS_STEPS),
    "ppo": (make_ppo, continuous, CONTINUOUS_STEPS),
    "r2d2": (make_r2d2, atari, ATARI_STEPS),
    "impala": (make_impala, atari, ATARI_STEPS),
}

if __name__ == "__main__":
    main()
