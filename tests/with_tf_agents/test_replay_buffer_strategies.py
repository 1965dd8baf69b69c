# SPDX-License-Identifier: Apache-2.0
"""The replay buffer in distribution strategies, with agents, and when its server goes away."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import sequential
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

import reverb
from reverb import errors, testing
from reverb.adapters.tf_agents import reverb_replay_buffer

# For two replicas. Where another module has made TensorFlow run, it cannot be said any more.
with contextlib.suppress(RuntimeError):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )

SPEC = {"x": tf.TensorSpec([3], tf.float32)}
STRATEGIES = {
    "default": tf.distribute.get_strategy,
    "one device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: tf.distribute.MirroredStrategy(
        [device.name for device in tf.config.list_logical_devices("CPU")]
    ),
}


def fill(client, table="table", num_items=20, length=2):
    with client.sequence_writer(table, length) as writer:
        for value in range(num_items + length - 1):
            writer.append({"x": np.full(3, value, np.float32)})


@pytest.fixture
def buffer():
    uniform = testing.table(sampler=reverb.selectors.Uniform())
    with testing.server([uniform]) as client:
        fill(client)
        yield reverb_replay_buffer.ReverbReplayBuffer(SPEC, "table", 2, client.server_address)


@pytest.mark.filterwarnings("ignore")  # Strategies warn about their own internals.
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("from_function", [False, True])
@pytest.mark.parametrize("num_steps", [2, 1])
def test_replicas_share_a_buffer(buffer, strategy, from_function, num_steps):
    strategy = STRATEGIES[strategy]()

    def dataset_of(context=None):
        batch_size = context.get_per_replica_batch_size(4) if context else 4
        return buffer.as_dataset(batch_size, num_steps, num_parallel_calls=1).prefetch(3)

    with strategy.scope():
        if from_function:
            dataset = strategy.distribute_datasets_from_function(dataset_of)
        else:
            dataset = strategy.experimental_distribute_dataset(dataset_of())

    @tf.function
    def rows(iterator):
        data, _ = next(iterator)
        count = strategy.run(lambda x: tf.shape(x)[0], args=(data["x"],))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, count, axis=None)

    iterator = iter(dataset)
    for _ in range(3):
        assert rows(iterator) == 4


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_an_agent_learns_from_it():
    observation = tensor_spec.BoundedTensorSpec([4], tf.float32, -1.0, 1.0)
    action = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1)
    agent = dqn_agent.DqnAgent(
        time_step.time_step_spec(observation),
        action,
        q_network=sequential.Sequential([tf.keras.layers.Dense(2)]),
        optimizer=tf.keras.optimizers.Adam(),
    )
    agent.initialize()
    spec = agent.collect_data_spec
    table = testing.table(
        sampler=reverb.selectors.Prioritized(1.0), signature=tensor_spec.add_outer_dim(spec, 2)
    )
    with testing.server([table]) as client:
        buffer = reverb_replay_buffer.ReverbReplayBuffer(spec, "table", 2, client.server_address)
        for seed in range(10):
            buffer.add_batch(tensor_spec.sample_spec_nest(spec, seed=seed, outer_dims=(3,)))
        buffer.flush()
        dataset = buffer.as_dataset(8, num_steps=2, num_parallel_calls=3).prefetch(3)

        @tf.function
        def train(iterator):
            experience, info = next(iterator)
            loss = agent.train(experience).loss
            buffer.update_priorities(info.key, tf.fill([8], tf.abs(loss) + 1.0))
            return loss

        iterator = iter(dataset)
        losses = [train(iterator) for _ in range(3)]
        assert np.isfinite(losses).all()
        buffer.close()


def test_sequences_are_mixed_with_other_datasets(buffer):
    dataset = tf.data.Dataset.sample_from_datasets(
        [buffer.as_dataset(4, 2), buffer.as_dataset(4, 2)], weights=[0.5, 0.5]
    )
    assert sum(data["x"].shape[0] for data, _ in dataset.take(5)) == 20
    first = next(dataset.as_numpy_iterator())
    assert first[1].key.shape == (4, 2)


def test_a_server_that_stops_ends_calls_with_its_address():
    server = reverb.Server([testing.table()])
    address = f"localhost:{server.port}"
    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        SPEC, "table", 2, address, connect_timeout_s=1.0
    )
    fill(buffer.py_client)
    dataset = buffer.as_dataset(2, single_deterministic_pass=True)
    assert len(list(dataset)) == 10
    server.stop()
    for call in (buffer.num_frames, buffer.get_table_info, buffer.clear, buffer.get_next):
        with pytest.raises(errors.UnavailableError, match=f"No server answered at {address}"):
            call()
    with pytest.raises(tf.errors.OpError, match=f"No server answered at {address}"):
        list(dataset)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_lost_server_ends_an_iteration_after_a_minute():
    server = reverb.Server([testing.table()])
    address = f"localhost:{server.port}"
    buffer = reverb_replay_buffer.ReverbReplayBuffer(SPEC, "table", 2, address)
    fill(buffer.py_client)
    iterator = iter(buffer.as_dataset(4, 2, num_parallel_calls=3).prefetch(3))
    next(iterator)
    server.stop()
    with pytest.raises(tf.errors.AbortedError, match=f"No server answered at {address}"):
        list(iterator)
