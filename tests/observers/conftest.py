# SPDX-License-Identifier: Apache-2.0
"""Frames, episodes of them, and what the observers wrote; nothing here needs TF-Agents."""

import collections
import contextlib

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.specs import TensorSpec

FIRST, MID, LAST = 0, 1, 2

# The fields of `tf_agents.trajectories.Trajectory`.
Frame = collections.namedtuple(
    "Frame", "step_type observation action policy_info next_step_type reward discount"
)


def make_frame(value, step_type=MID, **fields):
    """A frame that is known by its observation."""
    frame = Frame(
        step_type=np.array(step_type, np.int32),
        observation=np.array([value, -value], np.float32),
        action=np.array(value, np.int64),
        policy_info=(),
        next_step_type=np.array(FIRST if np.all(step_type == LAST) else MID, np.int32),
        reward=np.array(1, np.float32),
        discount=np.array(1, np.float32),
    )
    return frame._replace(**fields)


def make_episode(start, num_frames):
    """Frames `start, start + 1, ...`, the last of which is a boundary."""
    step_types = [FIRST] + [MID] * (num_frames - 2) + [LAST]
    return [
        make_frame(start + i, step_type)
        for i, step_type in enumerate(step_types[-num_frames:] if num_frames > 1 else [LAST])
    ]


def written(client, table="table"):
    """Takes all items out of a table; their actions, in the order of their insertion."""
    size = client.server_info()[table].current_size
    if size == 0:
        return []
    samples = client.sample(table, size, emit_timesteps=False)
    return [sample.data[2].tolist() for sample in samples]


def signature(sequence_length):
    return Frame(
        TensorSpec([sequence_length], np.int32, "step_type"),
        TensorSpec([sequence_length, 2], np.float32, "observation"),
        TensorSpec([sequence_length], np.int64, "action"),
        (),
        TensorSpec([sequence_length], np.int32, "next_step_type"),
        TensorSpec([sequence_length], np.float32, "reward"),
        TensorSpec([sequence_length], np.float32, "discount"),
    )


@pytest.fixture
def frame():
    """`frame(value, step_type=MID, **fields)`."""
    return make_frame


@pytest.fixture
def episode():
    """`episode(start, num_frames)`: its frames."""
    return make_episode


@pytest.fixture
def items():
    """`items(client, table="table")`: takes all items out, and gives the actions of each."""
    return written


@pytest.fixture
def priorities():
    """`priorities(client)`: takes all items out of the table, and gives the priority of each."""

    def priorities(client):
        samples = client.sample("table", client.server_info()["table"].current_size)
        return [steps[0].info.priority for steps in samples]

    return priorities


@pytest.fixture
def client():
    """A client of a server with tables that return every item once."""
    once = {"max_times_sampled": 1}
    tables = [
        testing.table("table", **once),
        testing.table("other", **once),
        testing.table("three", signature=signature(3), **once),
        testing.table("any", signature=signature(None), **once),
        reverb.Table.queue("queue", 1),
    ]
    with testing.server(tables) as made:
        yield made


@pytest.fixture
def observers(client):
    """`observers(kind, length, table="table", **options)`: an observer, closed after the test."""
    with contextlib.ExitStack() as stack:

        def observers(kind, length, table="table", **options):
            observer = kind(client, table, length, **options)
            stack.callback(observer.close)
            return observer

        yield observers
