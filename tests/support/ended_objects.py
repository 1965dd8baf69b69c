# SPDX-License-Identifier: Apache-2.0
"""Objects that programs close or stop, and what may be called of them afterwards.

No call waits then. A new class with an end, and a new adapter, gets its row here: the test of the
table in `connections/` finds one without.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import reverb
from reverb import aio, errors, structured, testing
from support.waiting import DEADLINE_S, Background

# The outcome of a call of something that has ended.
REFUSALS = (StopIteration, StopAsyncIteration, errors.FailedPreconditionError)


class Ended(NamedTuple):
    """An object, made of an address; how it ends; calls that are refused then, and others.

    Functions may return an awaitable.
    """

    make: Callable[[str], Any]
    refused: dict[str, Callable[[Any], Any]]
    answered: dict[str, Callable[[Any], Any]]
    end: Callable[[Any], Any] = lambda it: it.close()


def tables():
    """A queue without items, of which every sample waits, and others."""
    return [
        reverb.Table.queue("queue", 10),
        testing.table("table"),
        testing.table("shuffled", sampler=reverb.selectors.Shuffle()),
    ]


def outcomes_of(row, address):
    """The results of all calls after the end of an object, or their errors, by their names."""

    async def outcomes():
        made = row.make(address)
        await _settled(row.end(made))
        found = {}
        for name, call in (row.refused | row.answered).items():
            try:
                found[name] = await _settled(call(made))
            except BaseException as error:
                found[name] = error
        return found

    return Background(lambda: asyncio.run(outcomes())).result()


def check(row, address):
    """Checks that no call waits, and which ones are refused."""
    outcomes = outcomes_of(row, address)
    refused = {name for name, it in outcomes.items() if isinstance(it, REFUSALS)}
    failed = {name for name, it in outcomes.items() if isinstance(it, BaseException)}
    assert (refused, failed) == (set(row.refused), set(row.refused)), outcomes


async def _settled(value):
    return await asyncio.wait_for(value, DEADLINE_S) if inspect.isawaitable(value) else value


def _client(address):
    return reverb.Client(address, connect_timeout_s=3600)


def _reader(make):
    """An iterator of a client."""
    return Ended(lambda address: make(_client(address)), {"next": next}, {"close": _close})


def _batches(**options):
    """Batches of an empty queue, fetched ahead."""
    options = {"table": "queue", "batch_size": 2} | options
    return Ended(
        lambda address: reverb.batches(_client(address), **options),
        {
            "next": next,
            "block": _next_in_block,
            "update": lambda it: it.update_priorities([1], 1.0),
        },
        {"close": _close, "flush": lambda it: it.flush(), "stats": lambda it: it.stats()},
    )


def _writer(make, append, *, answered=None):
    return Ended(
        lambda address: make(_client(address)),
        {"append": append, "flush": lambda it: it.flush()},
        answered if answered is not None else {"close": _close},
    )


def _aio_reader(make):
    return Ended(
        lambda address: make(aio.Client(address, connect_timeout_s=3600)),
        {"next": lambda it: it.__anext__()},
        {},
        lambda it: it.aclose() if hasattr(it, "aclose") else it.close(),
    )


def _close(it):
    return it.close()


def _next_in_block(it):
    with it:
        return next(it)


def _structured_writer(client):
    pattern = structured.pattern_from_transform([0], lambda step: [step[0][-1]])
    return client.structured_writer([structured.create_config(pattern, "table")])


def _box():
    import gymnasium

    return gymnasium.spaces.Box(-1, 1, (3,), np.float32)


def _loader(address):
    from reverb.adapters.torch import Loader

    return Loader(_client(address), "queue", 1)


def _sb3_buffer(address):
    from reverb.adapters.sb3 import ReverbReplayBuffer

    del address  # It has a server of its own.
    buffer = ReverbReplayBuffer(10, _box(), _box())
    _add_to_sb3(buffer)
    return buffer


def _add_to_sb3(buffer):
    observation, zero = np.zeros((1, 3), np.float32), np.zeros(1)
    buffer.add(observation, observation, observation, zero, zero, [{}])


def _torchrl_buffer(address):
    from reverb.adapters.torchrl import ReverbReplayBuffer

    del address  # It has a server of its own.
    buffer = ReverbReplayBuffer(max_size=10, batch_size=2, alpha=0.5)
    buffer.extend(_tensors())
    return buffer


def _tensors():
    import torch
    from tensordict import TensorDict

    return TensorDict({"x": torch.zeros(3, 2)}, [3])


def _recorder(address):
    import gymnasium

    from reverb.adapters.gymnasium import Recorder

    envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    recorder = Recorder(envs, _client(address), "table")
    recorder.reset(seed=1)
    return recorder


def _env_recorder(address):
    import gymnasium

    from reverb.adapters.gymnasium import EnvRecorder

    recorder = EnvRecorder(gymnasium.make("CartPole-v1"), _client(address), "table")
    recorder.reset(seed=1)
    return recorder


# By library, "" for this package alone; a word after the name tells the variant.
ROWS = {
    "": {
        "reverb.Server": Ended(
            lambda address: reverb.Server(tables()),
            {"block": lambda it: it.__enter__()},
            {
                name: lambda it, name=name: getattr(it, name)()
                for name in ("wait", "stop", "status")
            },
            lambda it: it.stop(),
        ),
        "reverb.Client": Ended(
            _client,
            {
                "size": lambda it: it.size("table"),
                "sample": lambda it: next(it.sample("queue")),
                "sample_batch": lambda it: it.sample_batch("queue", 1),
                "insert": lambda it: it.insert([1.0], {"table": 1.0}),
                "block": lambda it: it.__enter__().tables(),
            },
            {"close": _close},
        ),
        "reverb.Client sample": _reader(lambda client: client.sample("queue")),
        "reverb.Client scan": _reader(lambda client: client.scan("table")),
        "reverb.client.BatchSampler": _reader(lambda client: client.batch_sampler("queue", 1)),
        "reverb.client.BatchSampler epochs": _reader(
            lambda client: client.batch_sampler("shuffled", 1, epochs=2)
        ),
        "reverb.BatchIterator": _batches(),
        "reverb.BatchIterator thread": _batches(transform=lambda batch: batch),
        "reverb.BatchIterator mixture": _batches(table={"queue": 1, "table": 1}),
        "reverb.BatchIterator window": _batches(window=reverb.Window(2)),
        "reverb.BatchIterator epochs": _batches(table="shuffled", epochs=2),
        "reverb.BatchIterator items": _batches(batch_size=None),
        "reverb.TrajectoryWriter": _writer(
            lambda client: client.trajectory_writer(1), lambda it: it.append([1.0])
        ),
        "reverb.BatchedTrajectoryWriter": _writer(
            lambda client: client.batched_trajectory_writer(2, 1),
            lambda it: it.append([np.ones(2)]),
        ),
        "reverb.SequenceWriter": _writer(
            lambda client: client.sequence_writer("table", 1), lambda it: it.append([1.0])
        ),
        "reverb.structured.StructuredWriter": Ended(
            lambda address: _structured_writer(_client(address)),
            {},
            {"append": lambda it: it.append([1.0]), "flush": lambda it: it.flush()},
            lambda it: it.__exit__(None, None, None),
        ),
        "reverb.Writer": _writer(
            lambda client: client.writer(1), lambda it: it.append([1.0]), answered={}
        ),
        "reverb.cluster.Coordinator": Ended(
            lambda address: reverb.cluster.Coordinator(f"shards:///{address}"),
            {},
            {name: lambda it, name=name: getattr(it, name)() for name in ("stop", "freeze")},
            lambda it: it.stop(),
        ),
        "reverb.aio.Client": Ended(
            lambda address: aio.Client(address, connect_timeout_s=3600),
            {
                "size": lambda it: it.size("table"),
                "sample_batch": lambda it: it.sample_batch("queue", 1),
                "sample": lambda it: it.sample("queue").__anext__(),
            },
            {"close": _close},
        ),
        "reverb.aio.SampleIterator": _aio_reader(lambda client: client.sample("queue")),
        "reverb.aio.SampleIterator scan": _aio_reader(lambda client: client.scan("table")),
        "reverb.aio.BatchSampler": _aio_reader(lambda client: client.batch_sampler("queue", 1)),
        "reverb.aio.BatchIterator": _aio_reader(lambda client: client.batches("queue", 1)),
        "reverb.aio.BatchIterator thread": _aio_reader(
            lambda client: client.batches("queue", 1, transform=lambda batch: batch)
        ),
    },
    "gymnasium": {
        "reverb.adapters.gymnasium.Recorder": Ended(
            _recorder,
            {"step": lambda it: it.step(np.zeros(2, np.int64)), "flush": lambda it: it.flush()},
            {"close": _close},
        ),
        "reverb.adapters.gymnasium.EnvRecorder": Ended(
            _env_recorder,
            {"step": lambda it: it.step(0), "flush": lambda it: it.flush()},
            {"close": _close},
        ),
    },
    "torch": {
        "reverb.adapters.torch.Loader": Ended(
            _loader,
            {"next": next, "update": lambda it: it.update_priorities([1], [1.0])},
            {"close": _close, "flush": lambda it: it.flush(), "stats": lambda it: it.stats()},
        ),
    },
    "sb3": {
        "reverb.adapters.sb3.ReverbReplayBuffer": Ended(
            _sb3_buffer,
            {
                "add": _add_to_sb3,
                "sample": lambda it: it.sample(1),
                "update": lambda it: it.update_priorities([1], [1.0]),
                "reset": lambda it: it.reset(),
                "flush": lambda it: it.flush(),
                "rewards": lambda it: it.rewards,
            },
            {"close": _close},
        ),
    },
    "torchrl": {
        "reverb.adapters.torchrl.ReverbReplayBuffer": Ended(
            _torchrl_buffer,
            {
                "extend": lambda it: it.extend(_tensors()),
                "sample": lambda it: it.sample(),
                "update": lambda it: it.update_priority([1], [1.0]),
                "empty": lambda it: it.empty(),
                "len": len,
                "state_dict": lambda it: it.state_dict(),
            },
            {"close": _close},
        ),
    },
}

# Classes that begin anew after their end, or need what other rooms have; and adapters without such
# a class. Each with a file of tests that says what happens then.
ELSEWHERE = {
    "reverb.adapters.acme": "with_acme/test_adder_life.py",
    "reverb.adapters.jax": "with_jax/test_batches.py",
    "reverb.adapters.ray": "with_ray/test_group.py",
    "reverb.adapters.tf_agents.reverb_replay_buffer": "with_tf_agents/test_replay_buffer_frames.py",
    "reverb.adapters.tf_agents.reverb_utils": "observers/test_trajectory_observer.py",
    "reverb.adapters.transfer_queue": "with_transfer_queue/test_ours.py",
    "reverb.aio.BatchedTrajectoryWriter": "aio/test_writers.py",
    "reverb.aio.SequenceWriter": "aio/test_writers.py",
    "reverb.aio.TrajectoryWriter": "aio/test_writers.py",
}
