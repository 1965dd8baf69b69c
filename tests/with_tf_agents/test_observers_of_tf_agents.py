# SPDX-License-Identifier: Apache-2.0
"""Our observers beside those of TF-Agents: the same items of the same frames and drivers."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.drivers import py_driver
from tf_agents.environments import batched_py_environment, test_envs
from tf_agents.policies import random_py_policy
from tf_agents.replay_buffers import reverb_replay_buffer
from tf_agents.replay_buffers import reverb_utils as theirs
from tf_agents.specs import tensor_spec
from tf_agents.train import actor
from tf_agents.trajectories import StepType, trajectory
from tf_agents.utils import batched_observer_unbatching

import reverb
from reverb import testing
from reverb.adapters.tf_agents import reverb_utils as ours

KINDS = [
    "ReverbAddEpisodeObserver",
    "ReverbAddTrajectoryObserver",
    "ReverbTrajectorySequenceObserver",
]


@pytest.fixture
def client():
    tables = [
        testing.table(name, max_size=10_000, max_times_sampled=1) for name in ("ours", "theirs")
    ]
    with testing.server(tables) as made:
        yield made


def make_frame(value, step_type):
    last = step_type == StepType.LAST
    return trajectory.Trajectory(
        step_type=np.array(step_type, np.int32),
        observation={"position": np.float32([value, -value]), "speed": np.float64(value)},
        action=np.array(value, np.int64),
        policy_info=(),
        next_step_type=np.array(StepType.FIRST if last else StepType.MID, np.int32),
        reward=np.array(value / 2, np.float32),
        discount=np.array(0 if last else 1, np.float32),
    )


def make_frames(lengths):
    """Frames of episodes of these lengths."""
    for number, length in enumerate(lengths, start=1):
        for step in range(length):
            step_type = StepType.LAST if step == length - 1 else StepType.MID
            yield make_frame(100 * number + step, step_type)


def taken(client, table):
    """All items of a table, taken out of it: priority and columns."""
    size = client.server_info()[table].current_size
    samples = client.sample(table, size, emit_timesteps=False) if size else []
    return [
        (sample.info.priority, [column.tolist() for column in sample.data]) for sample in samples
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["__init__", "__call__", "reset", "open", "close"])
def test_arguments_are_theirs(kind, method):
    our_parameters = inspect.signature(getattr(getattr(ours, kind), method)).parameters
    their_parameters = inspect.signature(getattr(getattr(theirs, kind), method)).parameters
    assert list(our_parameters) == list(their_parameters)
    for name, parameter in their_parameters.items():
        assert our_parameters[name].default == parameter.default
        assert our_parameters[name].kind == parameter.kind


@pytest.mark.parametrize("kind", KINDS)
def test_public_names_are_theirs(kind):
    public = {name for name in dir(getattr(theirs, kind)) if not name.startswith("_")}
    assert public <= set(dir(getattr(ours, kind)))


# Where theirs lose no tail and write no window twice.
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ReverbAddEpisodeObserver", {"max_sequence_length": 9, "priority": 3}),
        *(
            (kind, {"sequence_length": length, "stride_length": stride} | options)
            for kind in KINDS[1:]
            for length, stride, options in [
                (1, 1, {}),
                (3, 1, {"priority": 0.5}),
                (3, 2, {}),
                (2, 5, {}),
                (4, 1, {"pad_end_of_episodes": True}),
                (3, 2, {"pad_end_of_episodes": True, "tile_end_of_episodes": True}),
                (2, 3, {"pad_end_of_episodes": True, "tile_end_of_episodes": True}),
            ]
        ),
    ],
)
def test_the_same_frames_make_the_same_items(client, kind, options):
    for module, table in ((ours, "ours"), (theirs, "theirs")):
        observer = getattr(module, kind)(client, table, **options)
        for frame in make_frames([5, 1, 9, 2, 4]):
            observer(frame)
        observer.reset(write_cached_steps=False)
        observer.close()
    items = taken(client, "ours")
    assert items
    assert items == taken(client, "theirs")


@pytest.mark.parametrize("module", [ours, theirs])
def test_eager_tensors_are_frames(client, module):
    observer = module.ReverbAddTrajectoryObserver(client, "ours", 3, pad_end_of_episodes=True)
    for frame in make_frames([2]):
        observer(tf.nest.map_structure(tf.constant, frame))
    ((_, columns),) = taken(client, "ours")
    assert columns[0] == [1, 2, 2]
    assert columns[1] == [[100.0, -100.0], [101.0, -101.0], [0.0, 0.0]]


def counting_environment(steps=3):
    return test_envs.CountingEnv(steps_per_episode=steps)


def random_policy(environment):
    return random_py_policy.RandomPyPolicy(
        environment.time_step_spec(), environment.action_spec(), seed=1
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_writes_the_same_through_both(client, kind):
    environment = counting_environment()
    observers = [
        getattr(module, kind)(client, table, 4)
        for module, table in ((ours, "ours"), (theirs, "theirs"))
    ]
    driver = py_driver.PyDriver(
        environment, random_policy(environment), observers, max_steps=25, max_episodes=None
    )
    driver.run(environment.reset())
    for observer in observers:
        observer.reset(write_cached_steps=False)
        observer.close()
    items = taken(client, "ours")
    assert items
    assert items == taken(client, "theirs")


@pytest.mark.parametrize("kind", KINDS)
def test_an_actor_drives_an_observer(client, tmp_path, kind):
    environment = counting_environment()
    observer = getattr(ours, kind)(client, "ours", 4)
    made = actor.Actor(
        environment,
        random_policy(environment),
        train_step=tf.Variable(0, dtype=tf.int64),
        steps_per_run=20,
        observers=[observer],
        summary_dir=str(tmp_path),
        metrics=[],
    )
    made.run()
    observer.reset(write_cached_steps=False)
    observer.close()
    assert taken(client, "ours")


def batched_environment(num_rows):
    # Episodes of different lengths.
    return batched_py_environment.BatchedPyEnvironment(
        [counting_environment(steps=2 + row) for row in range(num_rows)], multithreading=False
    )


def collect_batched(observer, num_rows, max_steps=60):
    environment = batched_environment(num_rows)
    driver = py_driver.PyDriver(
        environment, random_policy(environment), [observer], max_steps=max_steps
    )
    driver.run(environment.reset())


def test_a_batched_environment_writes_what_unbatching_writes(client):
    observer = ours.ReverbBatchedTrajectoryObserver(client, "ours", 3, batch_size=4)
    singles = []

    def single():
        singles.append(theirs.ReverbAddTrajectoryObserver(client, "theirs", 3))
        return singles[-1]

    unbatching = batched_observer_unbatching.BatchedObserverUnbatching(single, 4)
    for one in (observer, unbatching):
        collect_batched(one, 4)
    for one in (observer, *singles):
        one.close()
    # Random actions are no part of what a counting environment shows.
    items = [[columns[0], columns[1], *columns[3:]] for _, columns in taken(client, "ours")]
    expected = [[columns[0], columns[1], *columns[3:]] for _, columns in taken(client, "theirs")]
    assert items
    assert sorted(items) == sorted(expected)


def test_unbatching_delegates_to_our_observers(client):
    singles = []

    def single():
        singles.append(ours.ReverbAddEpisodeObserver(client, "ours", 10))
        return singles[-1]

    collect_batched(batched_observer_unbatching.BatchedObserverUnbatching(single, 2), 2, 12)
    for one in singles:
        one.close()
    lengths = [len(columns[0]) for _, columns in taken(client, "ours")]
    assert set(lengths) == {3, 4}  # Steps of the environment, and the boundary.


def test_a_batched_environment_of_another_size_is_refused(client):
    with (
        ours.ReverbBatchedTrajectoryObserver(client, "ours", 2, batch_size=3) as observer,
        pytest.raises(ValueError, match=r"shape \[3\].* batch_size .* got shape \[2\]"),
    ):
        collect_batched(observer, 2)


def test_on_policy_training_reads_each_iteration_whole():
    """As PPO does: one observer, two tables that hand out items once, and a dataset that ends."""
    num_steps, names = 12, ("training", "normalization")
    environment = counting_environment()
    policy = random_policy(environment)
    data_spec = tensor_spec.from_spec(policy.trajectory_spec)
    server = reverb.Server([reverb.Table.queue(name, 100) for name in names])
    buffers = [
        reverb_replay_buffer.ReverbReplayBuffer(
            data_spec,
            name,
            sequence_length=num_steps,
            local_server=server,
            max_cycle_length=1,
            rate_limiter_timeout_ms=200,
        )
        for name in names
    ]
    observer = ours.ReverbTrajectorySequenceObserver(
        buffers[0].py_client, names, sequence_length=num_steps, stride_length=num_steps
    )
    collect = actor.Actor(
        environment, policy, tf.Variable(0, dtype=tf.int64), 10 * num_steps, observers=[observer]
    )
    for _ in range(2):
        collect.run()
        observer.reset(write_cached_steps=False)
        for buffer in buffers:
            num_items = buffer.num_frames()
            assert num_items >= 10  # Boundaries are frames, but no steps.
            elements = list(buffer.as_dataset(sample_batch_size=1, num_steps=num_steps))
            assert len(elements) == num_items
            assert elements[0][0].observation.shape == (1, num_steps)
            assert buffer.num_frames() == 0
    observer.close()
    server.stop()
