# SPDX-License-Identifier: Apache-2.0
"""Where there is memory, a buffer with a server of its own stores fields as they are."""

import pytest
import torch
from tensordict import TensorDict

import reverb
from reverb.adapters.torchrl import ReverbReplayBuffer, tables

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


def frames(count=20):
    """Steps with a frame of one color each."""
    pixels = torch.arange(count, dtype=torch.uint8)[:, None, None].expand(-1, 84, 84)
    done = torch.zeros(count, 1, dtype=torch.bool)
    following = {"done": done, "reward": torch.ones(count, 1)}
    return TensorDict({"pixels": pixels.clone(), "next": following}, [count])


def stored_bytes(buffer):
    return reverb.Client(buffer.server).status().memory.tables


@pytest.mark.parametrize(
    ("num_bytes", "is_raw"),
    [(None, False), (4 * SIZE * FRAME_BYTES, False), (5 * SIZE * FRAME_BYTES, True)],
)
@pytest.mark.parametrize("sequence_length", [None, 5])
def test_the_memory_of_the_process_decides(made, memory, lines, num_bytes, is_raw, sequence_length):
    memory(num_bytes)
    options = {} if sequence_length is None else {"sequence_length": sequence_length}
    buffer = made(max_size=SIZE, batch_size=50, **options)
    for _ in range(2):
        buffer.extend(frames())
    assert (stored_bytes(buffer) > 40 * FRAME_BYTES) == is_raw
    assert len(lines()) == is_raw
    pixels = buffer.sample()["pixels"]
    assert (pixels == pixels[:, :1, :1]).all()


def test_the_choice_stays_when_items_are_loaded(made, memory, lines):
    memory(2**40)
    buffer = made(max_size=SIZE, batch_size=5)
    buffer.extend(frames())
    buffer.load_state_dict(buffer.state_dict())
    buffer.extend(frames())
    assert stored_bytes(buffer) > 40 * FRAME_BYTES
    assert len(lines()) == 1


def test_episodes_of_unknown_lengths_are_compressed(made, memory, lines):
    memory(2**40)
    window = reverb.Window(3)
    buffer = made(max_size=SIZE, batch_size=6, window=window)
    episode = frames()
    episode["next", "done"][-1] = True
    buffer.extend(episode)
    assert len(buffer) == 1
    assert stored_bytes(buffer) < 10 * FRAME_BYTES
    assert lines() == []


def test_a_table_on_a_server_gets_compressed_fields(memory, lines):
    memory(2**40)
    with reverb.Server(tables("replay")) as server:
        buffer = ReverbReplayBuffer(f"localhost:{server.port}", batch_size=5)
        buffer.extend(frames())
        assert stored_bytes(buffer) < 10 * FRAME_BYTES
        assert lines() == []
        buffer.close()
