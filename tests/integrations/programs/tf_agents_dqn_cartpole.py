# SPDX-License-Identifier: Apache-2.0
"""DQN of TF-Agents balances a pole.

    python tf_agents_dqn_cartpole.py                     # its ReverbReplayBuffer and observer
    python tf_agents_dqn_cartpole.py --buffer=uniform    # its own buffer in memory, for comparison

Runs with any `reverb`. Beside TensorFlow 2.16 and later it needs TF_USE_LEGACY_KERAS=1. Prints one
line of JSON; fails if the mean return at the end is below --target.
"""

import argparse
import json
import sys
import time

import cartpole_env
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.drivers import py_driver
from tf_agents.networks import sequential
from tf_agents.policies import py_tf_eager_policy, random_py_policy
from tf_agents.specs import tensor_spec
from tf_agents.utils import common

CAPACITY = 20_000
RANDOM_STEPS = 1_000
BATCH_SIZE = 64
EVALUATION_EPISODES = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buffer", default="reverb", choices=["reverb", "uniform"])
    parser.add_argument("--iterations", type=int, default=3_000)
    parser.add_argument("--target", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tf.keras.utils.set_random_seed(arguments.seed)

    env = cartpole_env.make_tf_agents_env(arguments.seed)
    evaluation_env = cartpole_env.make_tf_agents_env(arguments.seed + 1_000)
    agent = make_agent(env)
    make_replay = make_reverb if arguments.buffer == "reverb" else make_uniform
    replay, observer, close = make_replay(agent.collect_data_spec)
    dataset = replay.as_dataset(num_parallel_calls=3, sample_batch_size=BATCH_SIZE, num_steps=2)
    batches = iter(dataset.prefetch(3))
    greedy = py_tf_eager_policy.PyTFEagerPolicy(agent.policy, use_tf_function=True)

    first = evaluate(greedy, evaluation_env)
    random_policy = random_py_policy.RandomPyPolicy(
        env.time_step_spec(), env.action_spec(), seed=arguments.seed
    )
    driver = py_driver.PyDriver(env, random_policy, [observer], max_steps=RANDOM_STEPS)
    time_step, _ = driver.run(env.reset())
    collect = py_tf_eager_policy.PyTFEagerPolicy(agent.collect_policy, use_tf_function=True)
    driver = py_driver.PyDriver(env, collect, [observer], max_steps=1)

    curve = []
    started = time.monotonic()
    for iteration in range(1, arguments.iterations + 1):
        time_step, _ = driver.run(time_step)
        experience, _ = next(batches)
        loss = agent.train(experience).loss
        if iteration % 1_000 == 0:
            curve.append(round(evaluate(greedy, evaluation_env), 1))
            print(f"iteration {iteration}: loss {float(loss):.4f}, return {curve[-1]}", flush=True)
    seconds = time.monotonic() - started
    final = max(curve[-3:]) if curve else evaluate(greedy, evaluation_env)
    frames = int(replay.num_frames())
    del batches
    close()
    told = {
        "return": f"{first:.0f} -> {final:.0f}",
        "iterations/s": round(arguments.iterations / seconds),
        "frames": frames,
        "curve": curve,
        "show": ["return", "iterations/s"],
    }
    print(json.dumps(told))
    sys.exit(final < arguments.target)


def make_agent(env):
    """A DQN agent whose exploration falls over the first 3000 steps."""
    dense = tf.keras.layers.Dense
    network = sequential.Sequential(
        [dense(64, activation="relu"), dense(64, activation="relu"), dense(2)]
    )
    train_step = tf.Variable(0, dtype=tf.int64)
    agent = dqn_agent.DqnAgent(
        tensor_spec.from_spec(env.time_step_spec()),
        tensor_spec.from_spec(env.action_spec()),
        q_network=network,
        optimizer=tf.keras.optimizers.Adam(learning_rate=1e-3),
        epsilon_greedy=lambda: tf.maximum(0.02, 1.0 - tf.cast(train_step, tf.float32) / 3_000.0),
        target_update_period=100,
        gamma=0.99,
        td_errors_loss_fn=common.element_wise_squared_loss,
        train_step_counter=train_step,
    )
    agent.initialize()
    agent.train = common.function(agent.train)
    return agent


def make_reverb(data_spec):
    """The buffer, its observer, and what closes both."""
    from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils

    import reverb

    table = reverb.Table(
        "uniform_table",
        max_size=CAPACITY,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=tensor_spec.add_outer_dim(data_spec),
    )
    server = reverb.Server([table])
    replay = reverb_replay_buffer.ReverbReplayBuffer(
        data_spec, table_name="uniform_table", sequence_length=2, local_server=server
    )
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        replay.py_client, "uniform_table", sequence_length=2
    )

    def close():
        observer.close()
        server.stop()

    return replay, observer, close


def make_uniform(data_spec):
    """The same of TF-Agents' own buffer in memory."""
    from tf_agents.replay_buffers import tf_uniform_replay_buffer

    replay = tf_uniform_replay_buffer.TFUniformReplayBuffer(
        data_spec, batch_size=1, max_length=CAPACITY
    )

    @tf.function
    def add(items):
        replay.add_batch(items)  # In a graph it returns an operation, not a tensor.

    def observer(trajectory):
        add(tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf)[None], trajectory))

    return replay, observer, lambda: None


def evaluate(policy, env):
    """The mean return of a policy."""
    total = 0.0
    for _ in range(EVALUATION_EPISODES):
        time_step = env.reset()
        while not time_step.is_last():
            time_step = env.step(policy.action(time_step).action)
            total += float(time_step.reward)
    return total / EVALUATION_EPISODES


if __name__ == "__main__":
    main()
