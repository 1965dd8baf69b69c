# SPDX-License-Identifier: Apache-2.0
"""Where there is memory, a buffer with a server of its own stores frames as they are."""

import pickle

import numpy as np
import pytest
from gymnasium import spaces

import reverb
from reverb import testing
from reverb.adapters.sb3 import ReverbReplayBuffer

FRAMES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
ACTIONS = spaces.Discrete(3)
FRAME_BYTES = 84 * 84
SIZE = 100
TEXT = "stores its data without compression"


@pytest.fixture
def lines(caplog):
    caplog.set_level("INFO", "reverb")
    return lambda: [text for text in caplog.messages if TEXT in text]


@pytest.fixture
def memory(monkeypatch):
    """Sets the memory that the process may use."""

    def set_memory(num_bytes):
        monkeypatch.setattr(reverb.Server, "process_memory", staticmethod(lambda: num_bytes))

    return set_memory


def fill(buffer, count=20):
    """Adds transitions whose frames are of one color each."""
    stack = np.zeros((1, *FRAMES.shape), np.uint8)
    for step in range(count):
        following = np.roll(stack, -1, 1)
        following[:, -1] = step
        values = (np.array([step % 3]), np.ones(1), np.zeros(1))
        buffer.add(stack, following, *values, [{}])
        stack = following
    buffer.flush()
    return buffer._client.status().memory.tables


@pytest.mark.parametrize(
    ("num_bytes", "is_raw"),
    [(None, False), (4 * SIZE * FRAME_BYTES, False), (5 * SIZE * FRAME_BYTES, True)],
)
def test_the_memory_of_the_process_decides(memory, lines, num_bytes, is_raw):
    memory(num_bytes)
    buffer = ReverbReplayBuffer(SIZE, FRAMES, ACTIONS)
    assert (fill(buffer) > 20 * FRAME_BYTES) == is_raw
    assert len(lines()) == is_raw
    sampled = buffer.sample(50)
    frames = sampled.observations.numpy()
    assert (frames[:, 1:] >= frames[:, :-1]).all()
    assert (sampled.next_observations.numpy()[:, :-1] == frames[:, 1:]).all()
    buffer.close()


def test_all_environments_count(memory, lines):
    memory(5 * SIZE * FRAME_BYTES)
    buffer = ReverbReplayBuffer(2 * SIZE, FRAMES, ACTIONS, n_envs=2)
    assert lines() == []
    buffer.close()


def test_a_loaded_buffer_decides_by_its_own_process(memory):
    memory(None)
    buffer = ReverbReplayBuffer(SIZE, FRAMES, ACTIONS)
    compressed = fill(buffer)
    memory(2**40)
    loaded = pickle.loads(pickle.dumps(buffer))
    buffer.close()
    assert loaded._client.status().memory.tables < 2 * compressed
    assert fill(loaded) > 20 * FRAME_BYTES
    loaded.close()


def test_a_table_on_a_server_gets_compressed_frames(memory, lines):
    memory(2**40)
    with reverb.Server([testing.table()]) as server:
        buffer = ReverbReplayBuffer(
            SIZE, FRAMES, ACTIONS, server=f"localhost:{server.port}", table="table"
        )
        assert fill(buffer) < 10 * FRAME_BYTES
        assert lines() == []
        buffer.close()
