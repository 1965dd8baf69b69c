# SPDX-License-Identifier: Apache-2.0
"""Items are read in their order, without sampling, as from TorchRL's own storage."""

import pytest
import torch
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.query import traj
from torchrl.envs.transforms import DoubleToFloat

from reverb.errors import FailedPreconditionError
from support.torchrl_steps import episodes, numbers, steps


@pytest.fixture
def both(made):
    """Our buffer and TorchRL's, with the same data."""
    buffers = [made(max_size=10), TensorDictReplayBuffer(storage=LazyTensorStorage(10))]
    for buffer in buffers:
        buffer.extend(steps(0, 6))
    return buffers


@pytest.mark.parametrize(
    "places",
    [
        slice(None),
        slice(3),
        slice(2, 5),
        slice(-2, None),
        slice(None, None, 2),
        slice(4, 4),
        slice(9, 12),
    ],
    ids=str,
)
def test_slices(both, places):
    ours, theirs = (buffer[places].exclude("index") for buffer in both)
    assert ours.batch_size == theirs.batch_size
    assert (ours == theirs).all()
    assert numbers(both[0].storage[places]) == numbers(theirs)


def test_fields_and_all_in_order(both):
    ours, theirs = both
    assert torch.equal(ours["number"], theirs["number"])
    assert torch.equal(ours["next", "reward"], theirs["next", "reward"])
    assert numbers(ours.read_all_in_order()) == numbers(theirs.read_all_in_order())
    assert numbers(ours.read_all_in_order(end=2)) == [0, 1]
    sampled = ours._access.info().rate_limiter_info.sample_stats.completed
    assert sampled == 0


def test_the_oldest_item_is_the_first(made):
    buffer = made(max_size=4)
    buffer.extend(steps(0, 6))
    assert numbers(buffer[:]) == [2, 3, 4, 5]
    assert numbers(buffer.read(slice(1, 3))) == [3, 4]


def test_transforms_are_applied_by_brackets_alone(made):
    buffer = made(transform=DoubleToFloat(in_keys=[("next", "reward")]))
    buffer.extend(steps(0, 3))
    assert buffer[:]["next", "reward"].dtype == torch.float32
    assert buffer.read()["next", "reward"].dtype == torch.float64


def test_sequences_and_trajectories(made):
    sequences = made(sequence_length=3)
    sequences.extend(episodes([4]))
    assert sequences[:].batch_size == torch.Size([2, 3])
    assert sequences[:]["step"].tolist() == [[0, 1, 2], [1, 2, 3]]
    # Other than in samples, the last step of a sequence is as it was written.
    assert sequences[:]["next", "done"][..., 0].tolist() == [[False] * 3, [False, False, True]]
    trajectories = made()
    trajectories.extend(episodes([3, 3]).reshape(2, 3))
    assert trajectories[:].batch_size == torch.Size([2, 3])


def test_queries_of_trajectories(made):
    buffer = made()
    buffer.extend(episodes([3, 5, 4]))
    found = buffer.query(traj.length >= 4)
    assert [it["episode"].unique().tolist() for it in found] == [[1], [2]]
    assert [it["step"].tolist() for it in found] == [list(range(5)), list(range(4))]
    assert made().query(traj.length >= 4) == []


def test_an_empty_table_says_so(made):
    buffer = made()
    with pytest.raises(FailedPreconditionError, match=r"table replay of server .* has no items"):
        buffer[:]
