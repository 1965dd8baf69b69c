# SPDX-License-Identifier: Apache-2.0
"""`add_batch` of the replay buffer: under drivers, in graphs, and with frames that do not fit."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.drivers import dynamic_episode_driver, dynamic_step_driver, py_driver
from tf_agents.environments import batched_py_environment, py_environment, tf_py_environment
from tf_agents.policies import random_py_policy, random_tf_policy
from tf_agents.replay_buffers import reverb_utils
from tf_agents.specs import array_spec, tensor_spec
from tf_agents.trajectories import StepType, time_step, trajectory
from tf_agents.utils import batched_observer_unbatching, common

import reverb
from reverb import errors, testing
from reverb.adapters.tf_agents import replay_buffer_utils, reverb_replay_buffer


class Counting(py_environment.PyEnvironment):
    """Observes its number, the number of the episode, and the step; episodes of a fixed length."""

    def __init__(self, number, num_steps):
        super().__init__(handle_auto_reset=True)
        self._number, self._num_steps, self._episode, self._steps = number, num_steps, 0, 0

    def action_spec(self):
        return array_spec.BoundedArraySpec((), np.int32, 0, 1)

    def observation_spec(self):
        return {"position": array_spec.ArraySpec((3,), np.float32)}

    def _reset(self):
        self._episode, self._steps = self._episode + 1, 0
        return time_step.restart(self._observation())

    def _step(self, action):
        self._steps += 1
        if self._steps == self._num_steps:
            return time_step.termination(self._observation(), 1.0)
        return time_step.transition(self._observation(), 1.0)

    def _observation(self):
        return {"position": np.float32([self._number, self._episode, self._steps])}


def environments():
    return batched_py_environment.BatchedPyEnvironment(
        [Counting(0, 3), Counting(1, 5)], multithreading=False
    )


@pytest.fixture
def environment():
    return tf_py_environment.TFPyEnvironment(environments())


@pytest.fixture
def policy(environment):
    return random_tf_policy.RandomTFPolicy(environment.time_step_spec(), environment.action_spec())


@pytest.fixture
def client():
    tables = [testing.table(name, max_size=10_000) for name in ("ours", "theirs")]
    with testing.server(tables) as made:
        yield made


@pytest.fixture
def make(client, policy):
    """Makes a buffer of frames of the environment."""
    with contextlib.ExitStack() as stack:

        def make_buffer(sequence_length, spec=None, **options):
            buffer = reverb_replay_buffer.ReverbReplayBuffer(
                spec or policy.trajectory_spec,
                "ours",
                sequence_length,
                client.server_address,
                **options,
            )
            stack.callback(buffer._writer.close)
            return buffer

        yield make_buffer


def items_of(client, name):
    """The observations of all items of a queue, in the order of insertion."""
    count = client.server_info()[name].current_size
    items = []
    for _ in range(count):
        (sample,) = client.sample(name, 1, emit_timesteps=False)
        items.append(sample.data[1].astype(int).tolist())
        client.mutate_priorities(name, deletes=[int(sample.info.key)])
    return items


def make_frames(position, step_type=StepType.MID):
    """A frame of each of two environments."""
    return trajectory.Trajectory(
        step_type=np.full(2, step_type, np.int32),
        observation={"position": np.full([2, 3], position, np.float32)},
        action=np.zeros(2, np.int32),
        policy_info=(),
        next_step_type=np.full(2, StepType.MID, np.int32),
        reward=np.zeros(2, np.float32),
        discount=np.ones(2, np.float32),
    )


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_step_driver_writes_every_window_of_its_episodes(
    client, make, environment, policy, in_graph, length
):
    buffer = make(length)
    driver = dynamic_step_driver.DynamicStepDriver(
        environment, policy, observers=[buffer.add_batch], num_steps=40
    )
    run = common.function(driver.run) if in_graph else driver.run
    run()
    run()
    assert buffer.num_frames() == client.server_info()["ours"].current_size
    items = items_of(client, "ours")
    assert len(items) > 30
    for item in items:
        assert len(item) == length
        number, episode, first = item[0]
        assert item == [[number, episode, first + step] for step in range(length)]
    for number, num_steps in ((0, 3), (1, 5)):
        firsts = [item[0][1:] for item in items if item[0][0] == number]
        # An episode of `num_steps` steps has one frame more.
        starts = range(max(0, num_steps + 2 - length))
        episodes = range(1, 2 + len(firsts) // max(1, len(starts)))
        expected = [[episode, start] for episode in episodes for start in starts]
        assert firsts == expected[: len(firsts)]


@pytest.mark.parametrize("length", [2, 4])
def test_items_are_those_of_the_observer_of_tf_agents(client, make, length):
    buffer = make(length)
    observers = []

    def make_observer():
        observers.append(
            reverb_utils.ReverbAddTrajectoryObserver(client, "theirs", sequence_length=length)
        )
        return observers[-1]

    theirs = batched_observer_unbatching.BatchedObserverUnbatching(make_observer, 2)
    environment = environments()
    policy = random_py_policy.RandomPyPolicy(
        environment.time_step_spec(), environment.action_spec()
    )
    driver = py_driver.PyDriver(
        environment, policy, observers=[buffer.add_batch, theirs], max_steps=50
    )
    driver.run(environment.reset())
    buffer.flush()
    for observer in observers:
        observer.flush()
    ours = items_of(client, "ours")
    assert len(ours) > 20
    assert sorted(ours) == sorted(items_of(client, "theirs"))


@pytest.mark.parametrize("in_graph", [False, True])
def test_whole_episodes_are_written_without_a_sequence_length(
    client, make, environment, policy, in_graph
):
    buffer = make(None)
    driver = dynamic_episode_driver.DynamicEpisodeDriver(
        environment, policy, observers=[buffer.add_batch], num_episodes=6
    )
    (common.function(driver.run) if in_graph else driver.run)()
    assert buffer.num_frames() >= 6
    for item in items_of(client, "ours"):
        number, episode, _ = item[0]
        frames = 4 if number == 0 else 6
        assert item == [[number, episode, step] for step in range(frames)]


def test_long_episodes_are_refused_and_the_next_is_written(client, make):
    buffer = make(None, max_sequence_length=3)
    for step in range(3):
        buffer.add_batch(make_frames(step))
    with pytest.raises(tf.errors.InvalidArgumentError, match="longer than max_sequence_length = 3"):
        buffer.add_batch(make_frames(3))
    buffer.add_batch(make_frames(4, StepType.LAST))
    buffer.add_batch(make_frames(5))
    buffer.add_batch(make_frames(6, StepType.LAST))
    assert buffer.num_frames() == 2
    assert items_of(client, "ours") == [[[5] * 3, [6] * 3]] * 2


def test_frames_without_step_type_are_one_endless_episode(client, make):
    spec = {"x": tf.TensorSpec([], tf.float32)}
    buffer = make(2, spec)
    for step in range(4):
        buffer.add_batch({"x": np.float32([step, step + 10])})
    assert buffer.num_frames() == 6
    rows = [sample.data[0] for sample in client.sample("ours", 1, emit_timesteps=False)]
    np.testing.assert_array_equal(rows, np.float32([[0, 1]]))
    with pytest.raises(errors.InvalidArgumentError, match="sequence_length must be a number"):
        make(None, spec).add_batch({"x": np.float32([1.0])})


def test_a_cleared_buffer_forgets_unfinished_windows(client, make):
    buffer = make(2)
    buffer.add_batch(make_frames(0))
    buffer.clear()
    buffer.add_batch(make_frames(1))
    assert buffer.num_frames() == 0
    buffer.add_batch(make_frames(2))
    assert buffer.num_frames() == 2
    assert items_of(client, "ours") == [[[1] * 3, [2] * 3]] * 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"observation": {"position": np.zeros([2, 4], np.float32)}},
            r"field observation/position of items must be float32 \[2, 3\], got float32 \[2, 4\]",
        ),
        (
            {"reward": np.zeros(2)},
            r"field reward of items must be float32 \[2\], got float64 \[2\]",
        ),
        ({"reward": np.zeros(3, np.float32)}, r"field reward .* float32 \[2\], got float32 \[3\]"),
        (
            {"step_type": np.int32(1)},
            r"field step_type of items must be int32 \[B\], got int32 \[\]",
        ),
        ({"observation": {}}, "missing: observation/position"),
        ({"policy_info": {"p": np.zeros(2)}}, "unknown: policy_info/p"),
    ],
)
@pytest.mark.parametrize("in_graph", [False, True])
def test_frames_that_do_not_fit_name_the_field(make, change, text, in_graph):
    buffer = make(2)
    frames = tf.nest.map_structure(tf.constant, make_frames(0)._replace(**change))

    @tf.function(autograph=False)
    def add():
        buffer.add_batch(frames)

    with pytest.raises(errors.SignatureMismatchError, match=text):
        add() if in_graph else buffer.add_batch(frames)
    buffer.add_batch(make_frames(0))
    buffer.add_batch(make_frames(1))
    assert buffer.num_frames() == 2


def test_another_number_of_environments_is_refused(make):
    buffer = make(2, batch_size=3)
    with pytest.raises(errors.SignatureMismatchError, match=r"frames of 3 environments.* got 2"):
        buffer.add_batch(make_frames(0))


def test_a_graph_that_does_not_know_the_batch_size_asks_for_it(make):
    frames = make_frames(0)
    signature = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), frames
    )

    def add_to(buffer):
        @tf.function(input_signature=[signature], autograph=False)
        def add(frames):
            buffer.add_batch(frames)

        return add

    with pytest.raises(errors.InvalidArgumentError, match="give the replay buffer its batch_size"):
        add_to(make(1))(frames)
    buffer = make(1, batch_size=2)
    add_to(buffer)(frames)
    assert buffer.num_frames() == 2


def test_data_that_are_not_the_tables_are_refused(policy):
    spec = policy.trajectory_spec
    signature = tensor_spec.add_outer_dim(spec._replace(reward=tf.TensorSpec([7], tf.int8)), 2)
    with testing.server([testing.table("ours", signature=signature)]) as client:
        buffer = reverb_replay_buffer.ReverbReplayBuffer(spec, "ours", 2, client.server_address)
        with pytest.raises((errors.InvalidArgumentError, tf.errors.InvalidArgumentError)) as info:
            buffer.add_batch(make_frames(0))
        assert "reward" in str(info.value)


def test_closing_sends_what_was_added(client, make):
    with make(1) as buffer:
        buffer.add_batch(make_frames(0))
    assert client.server_info()["ours"].current_size == 2
    buffer.close()
    with pytest.raises(errors.FailedPreconditionError, match="the replay buffer is closed"):
        buffer.add_batch(make_frames(1))
    assert buffer.num_frames() == 2
    buffer = make(1)
    buffer.add_batch(make_frames(2))
    with pytest.raises(RuntimeError, match="of the body"), buffer:
        raise RuntimeError("of the body")
    assert client.server_info()["ours"].current_size == 4


def test_a_held_up_insert_does_not_hold_up_reading(policy):
    limiter = reverb.rate_limiters.Queue(1)
    with testing.server([testing.table("ours", rate_limiter=limiter)]) as client:
        buffer = reverb_replay_buffer.ReverbReplayBuffer(
            policy.trajectory_spec, "ours", 1, client.server_address
        )
        buffer.add_batch(make_frames(0))
        assert buffer.num_frames() == 1
        with pytest.raises(errors.DeadlineExceededError):
            buffer.flush(timeout_ms=10)
        buffer._writer.close()


def test_a_buffer_and_an_observer_come_in_one_call(policy):
    buffer, observer = replay_buffer_utils.get_reverb_buffer_and_observer(
        policy.trajectory_spec, sequence_length=2, replay_capacity=5, stride_length=2
    )
    with buffer.local_server:
        frame = tf.nest.map_structure(lambda leaf: leaf[0], make_frames(0))
        for _ in range(4):
            observer(frame)
        observer.flush()
        assert buffer.num_frames() == 2
        assert buffer.capacity == 5
        assert next(iter(buffer.as_dataset(3)))[0].reward.shape == (3, 2)
        other = replay_buffer_utils.get_reverb_buffer(
            policy.trajectory_spec, 2, reverb_server_address=buffer.py_client.server_address
        )
        assert other.local_server is None
        assert other.num_frames() == 2
        observer.close()
    table = testing.table("mine", max_size=3)
    buffer = replay_buffer_utils.get_reverb_buffer(policy.trajectory_spec, table=table)
    with buffer.local_server:
        assert (buffer.table_name, buffer.capacity) == ("mine", 3)
