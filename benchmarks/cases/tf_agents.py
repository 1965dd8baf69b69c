# SPDX-License-Identifier: Apache-2.0
"""TF-Agents: frames through its observers, batches and DQN steps from its replay buffer.

Cases called `adapter` use `reverb.adapters.tf_agents` where the package has it, the others
TF-Agents' own classes over both packages.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import measure
import numpy as np

from cases.case import Case, Metric

Figures = Mapping[str, measure.Figure]

_NEEDS = ("tensorflow", "tf_agents")
_TABLE = "experience"
_EPISODE = 100
_ITEMS = 5_000
_BATCH = 64
_ENVIRONMENTS = 32
# Batches that are read before the measurement.
_SETTLING_BATCHES = 50


def _modules(adapter: bool) -> tuple[Any, Any]:
    """Returns the modules of the buffer and of the observers."""
    if adapter and importlib.util.find_spec("reverb.adapters"):
        from reverb.adapters.tf_agents import reverb_replay_buffer, reverb_utils
    else:
        from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils
    return reverb_replay_buffer, reverb_utils


def _frame_spec(observation: tuple[int, ...]) -> Any:
    import tensorflow as tf
    from tf_agents.trajectories import trajectory

    return trajectory.Trajectory(
        step_type=tf.TensorSpec((), tf.int32),
        observation=tf.TensorSpec(observation, tf.float32),
        action=tf.TensorSpec((), tf.int64),
        policy_info=(),
        next_step_type=tf.TensorSpec((), tf.int32),
        reward=tf.TensorSpec((), tf.float32),
        discount=tf.TensorSpec((), tf.float32),
    )


def _frames(observation: tuple[int, ...], rows: int | None = None) -> list[Any]:
    """Returns the frames of one episode; with `rows`, of that many parallel environments."""
    from tf_agents.trajectories import trajectory

    batch = () if rows is None else (rows,)
    values = np.random.default_rng(0).random((_EPISODE, *batch, *observation), np.float32)

    def frame(index: int) -> Any:
        last = index == _EPISODE - 1
        return trajectory.Trajectory(
            step_type=np.full(batch, 2 if last else min(index, 1), np.int32),
            observation=values[index],
            action=np.full(batch, index % 2, np.int64),
            policy_info=(),
            next_step_type=np.full(
                batch, 0 if last else 2 if index == _EPISODE - 2 else 1, np.int32
            ),
            reward=np.full(batch, index, np.float32),
            discount=np.ones(batch, np.float32),
        )

    return [frame(index) for index in range(_EPISODE)]


@contextlib.contextmanager
def _buffer(
    adapter: bool, observation: tuple[int, ...], sequence_length: int | None
) -> Iterator[Any]:
    """Opens a replay buffer over a server of its own in this process."""
    from tf_agents.specs import tensor_spec

    import reverb

    spec = _frame_spec(observation)
    table = reverb.Table(
        _TABLE,
        max_size=100_000,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=tensor_spec.add_outer_dim(spec, sequence_length),
    )
    server = reverb.Server([table])
    try:
        yield _modules(adapter)[0].ReverbReplayBuffer(
            spec, table_name=_TABLE, sequence_length=sequence_length, local_server=server
        )
    finally:
        server.stop()


def _observed(
    scale: measure.Scale, *, adapter: bool, kind: str, length: int, observation: tuple[int, ...]
) -> Figures:
    observers = _modules(adapter)[1]
    with _buffer(adapter, observation, None if kind == "episode" else length) as buffer:
        if kind == "episode":
            observer = observers.ReverbAddEpisodeObserver(buffer.py_client, _TABLE, length)
        else:
            observer = observers.ReverbAddTrajectoryObserver(buffer.py_client, _TABLE, length)
        write = _writer_of(observer, _frames(observation))
        figure = measure.rate(write, scale)
        observer.close()
    return {"rate": figure}


def _observed_batches(scale: measure.Scale) -> Figures:
    adapter, observation = True, (4,)
    observers = _modules(adapter)[1]
    with _buffer(adapter, observation, 2) as buffer:
        if hasattr(observers, "ReverbBatchedTrajectoryObserver"):
            observer = observers.ReverbBatchedTrajectoryObserver(
                buffer.py_client, _TABLE, sequence_length=2, batch_size=_ENVIRONMENTS
            )
        else:
            from tf_agents.utils import batched_observer_unbatching

            observer = batched_observer_unbatching.BatchedObserverUnbatching(
                lambda: observers.ReverbAddTrajectoryObserver(buffer.py_client, _TABLE, 2),
                _ENVIRONMENTS,
            )
        write = _writer_of(observer, _frames(observation, rows=_ENVIRONMENTS))
        figure = measure.rate(write, scale, per_call=_ENVIRONMENTS)
    return {"rate": figure}


def _writer_of(observer: Any, frames: list[Any]) -> Callable[[int], None]:
    """Returns a function that passes frames to an observer and waits for confirmation."""

    endless = itertools.cycle(frames)

    def write(count: int) -> None:
        for frame in itertools.islice(endless, count):
            observer(frame)
        if hasattr(observer, "flush"):
            observer.flush()

    return write


def _fill(adapter: bool, buffer: Any, observation: tuple[int, ...], length: int) -> None:
    observer = _modules(adapter)[1].ReverbAddTrajectoryObserver(buffer.py_client, _TABLE, length)
    # Counted from above: an episode of n frames has n - length + 1 windows.
    _writer_of(observer, _frames(observation))(_ITEMS)
    observer.close()
    if int(buffer.num_frames()) < _ITEMS // 2:
        raise ValueError(f"{int(buffer.num_frames())} items of {_ITEMS} arrived")


def _iterator(buffer: Any, num_steps: int) -> Iterator[Any]:
    samples = buffer.as_dataset(
        num_parallel_calls=3, sample_batch_size=_BATCH, num_steps=num_steps
    ).prefetch(3)
    iterator = iter(samples)
    for _ in range(_SETTLING_BATCHES):
        next(iterator)
    return iterator


def _reader(iterator: Iterator[Any], num_steps: int) -> Callable[[int], None]:
    def read(count: int) -> None:
        for _ in range(count):
            frames, _info = next(iterator)
        rewards = frames.reward.numpy()
        if rewards.shape != (_BATCH, num_steps) or np.any(np.diff(rewards) != 1):
            raise ValueError(f"a batch has rewards {rewards}")

    return read


def _batches(
    scale: measure.Scale, *, adapter: bool, observation: tuple[int, ...], length: int
) -> Figures:
    with _buffer(adapter, observation, length) as buffer:
        _fill(adapter, buffer, observation, length)
        # The last reference: the iterator must be deleted before the server stops.
        figure = measure.rate(_reader(_iterator(buffer, length), length), scale, per_call=_BATCH)
    return {"rate": figure}


def _beside_uniform(scale: measure.Scale) -> Figures:
    """Both buffers in one process, one after the other, three times each."""
    observation, length = (4,), 2
    uniform = _reader(_iterator(_uniform_buffer(observation), length), length)
    with _buffer(True, observation, length) as buffer:
        _fill(True, buffer, observation, length)
        read = _reader(_iterator(buffer, length), length)
        ratios = []
        for _ in range(3):
            ours = measure.rate(read, scale, per_call=_BATCH)
            ratios.append(ours.value / measure.rate(uniform, scale, per_call=_BATCH).value)
        del read
    return {"ratio": measure.Figure(float(np.median(ratios)))}


def _uniform_buffer(observation: tuple[int, ...]) -> Any:
    import tensorflow as tf
    from tf_agents.replay_buffers import tf_uniform_replay_buffer

    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(
        _frame_spec(observation), batch_size=1, max_length=100_000
    )
    for frame in _frames(observation)[:-1]:
        buffer.add_batch(
            tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf)[None], frame)
        )
    return buffer


def _learner(scale: measure.Scale, *, adapter: bool) -> Figures:
    """Gradient steps of a small DQN agent, each with a batch of its own."""
    import tensorflow as tf
    from tf_agents.agents.dqn import dqn_agent
    from tf_agents.networks import sequential
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import time_step
    from tf_agents.utils import common

    dense = tf.keras.layers.Dense
    agent = dqn_agent.DqnAgent(
        time_step.time_step_spec(tf.TensorSpec((4,), tf.float32, "observation")),
        tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, "action"),
        q_network=sequential.Sequential([dense(32, activation="relu"), dense(2)]),
        optimizer=tf.keras.optimizers.Adam(),
        train_step_counter=tf.Variable(0, dtype=tf.int64),
    )
    agent.initialize()
    train = common.function(agent.train)
    with _buffer(adapter, (4,), 2) as buffer:
        _fill(adapter, buffer, (4,), 2)
        figure = measure.rate(_trainer(train, _iterator(buffer, 2)), scale)
    return {"rate": figure}


def _trainer(train: Callable[[Any], Any], iterator: Iterator[Any]) -> Callable[[int], None]:
    def steps(count: int) -> None:
        for _ in range(count):
            frames, _info = next(iterator)
            loss = train(frames).loss
        if not np.isfinite(loss.numpy()):
            raise ValueError(f"the loss is {loss.numpy()}")

    steps(3)  # Traces the functions of the agent.
    return steps


def _observer_case(
    kind: str, length: int, words: str, observation: tuple[int, ...], adapter: bool
) -> Case:
    middle = f"{'adapter_' if adapter else ''}{kind}_{length}" + (
        "_image" if observation[1:] else ""
    )
    return Case(
        f"tf_agents_observer_{middle}",
        f"{words}, {'our adapter if the package has it' if adapter else 'class of TF-Agents'}.",
        partial(_observed, adapter=adapter, kind=kind, length=length, observation=observation),
        (Metric("rate", "frames/s", target_ratio=3),),
        needs=_NEEDS,
    )


def _batch_case(name: str, length: int, observation: tuple[int, ...], adapter: bool) -> Case:
    return Case(
        f"tf_agents_as_dataset_{'adapter_' if adapter else ''}{name}",
        f"as_dataset, batches of {_BATCH} sequences of {length} steps, prefetched, "
        f"{'our adapter if the package has it' if adapter else 'class of TF-Agents'}.",
        partial(_batches, adapter=adapter, observation=observation, length=length),
        (Metric("rate", "sequences/s", target_ratio=2),),
        needs=_NEEDS,
    )


_WHOSE = (False, True)
CASES = (
    *(
        case
        for adapter in _WHOSE
        for case in (
            _observer_case("trajectory", 2, "Frames through the observer, L=2", (4,), adapter),
            _observer_case("trajectory", 10, "Frames through the observer, L=10", (4,), adapter),
            _observer_case("trajectory", 2, "Frames with an image, L=2", (84, 84), adapter),
            _observer_case("episode", 100, "Frames through the episode observer", (4,), adapter),
            _batch_case("small", 2, (4,), adapter),
            _batch_case("small_10", 10, (4,), adapter),
            _batch_case("image", 2, (84, 84), adapter),
            Case(
                f"tf_agents_learner_{'adapter' if adapter else 'unchanged'}",
                "DQN steps with batches of as_dataset, "
                f"{'our adapter if the package has it' if adapter else 'class of TF-Agents'}.",
                partial(_learner, adapter=adapter),
                (Metric("rate", "steps/s"),),
                needs=_NEEDS,
            ),
        )
    ),
    Case(
        "tf_agents_observer_batched",
        f"Frames of {_ENVIRONMENTS} environments through one observer, or unbatched to many.",
        _observed_batches,
        (Metric("rate", "frames/s", target_ratio=3),),
        needs=_NEEDS,
    ),
    Case(
        "tf_agents_as_dataset_beside_uniform",
        "as_dataset of the adapter beside that of TFUniformReplayBuffer in the same process.",
        _beside_uniform,
        (Metric("ratio", "times", limit=1.0),),
        needs=_NEEDS,
    ),
)
