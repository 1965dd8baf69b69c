# SPDX-License-Identifier: Apache-2.0
"""Priorities, weights and probabilities, beside those of TorchRL's own sampler."""

import pytest
import torch
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer

from reverb.errors import InvalidArgumentError
from support.torchrl_steps import episodes, numbers, steps

# Another batch size than that of the constructor is what some of these ask for.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_weights_are_those_of_the_librarys_sampler(made, alpha):
    ours = made(batch_size=20_000, alpha=alpha, beta=0.7)
    theirs = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8), sampler=PrioritizedSampler(8, alpha, 0.7), batch_size=20_000
    )
    priorities = torch.tensor([1.0, 2.0, 4.0, 8.0, 0.5, 3.0, 3.0, 1.0])
    samples = []
    for buffer in (ours, theirs):
        data = steps(0, 8)
        index = buffer.extend(data)
        buffer.update_priority(index, priorities)
        samples.append(buffer.sample())
    weights = []
    for sample in samples:
        assert sample["priority_weight"].dtype == torch.float32
        weights.append(dict(zip(numbers(sample), sample["priority_weight"].tolist(), strict=True)))
    assert weights[0] == pytest.approx(weights[1], rel=1e-5)
    counts = [torch.bincount(sample["number"], minlength=8) / 20_000 for sample in samples]
    assert torch.allclose(counts[0], counts[1], atol=0.02)


def test_priorities_of_new_items(made):
    buffer = made(alpha=1.0, batch_size=4, priority_key=("next", "error"))
    data = steps(0, 3)
    buffer.extend(data)
    data = steps(3, 2)
    data["next", "error"] = torch.tensor([[5.0], [0.25]])
    with pytest.raises(InvalidArgumentError, match=r"\['next.error'\] are new"):
        buffer.extend(data)
    buffer.update_priority(buffer.extend(steps(5, 1)), 9.0)
    buffer.extend(steps(6, 1))
    found = [it.info.priority for it in buffer._access.client.scan("replay")]
    # A new item has the largest priority that there ever was.
    assert found == pytest.approx([1.0, 1.0, 1.0, 9.0, 9.0])


def test_priorities_in_the_data_are_those_of_the_items(made):
    buffer = made(alpha=1.0, batch_size=4)
    data = steps(0, 2)
    data["td_error"] = torch.tensor([[5.0], [0.25]])
    buffer.extend(data)
    buffer.extend(data, update_priority=False)
    found = [it.info.priority for it in buffer._access.client.scan("replay")]
    assert found == pytest.approx([5.0, 0.25, 5.0, 5.0])


def test_indices_of_items_that_are_gone_are_ignored(made):
    buffer = made(max_size=2, alpha=1.0, batch_size=2)
    gone = buffer.extend(steps(0, 2))
    buffer.extend(steps(2, 2))
    buffer.update_priority(gone, torch.tensor([100.0, 100.0]))
    assert [it.info.priority for it in buffer._access.client.scan("replay")] == [1.0, 1.0]


def test_a_uniform_buffer_takes_no_priorities(made):
    buffer = made(batch_size=2)
    assert not isinstance(buffer.sampler, PrioritizedSampler)
    index = buffer.extend(steps(0, 2))
    sample = buffer.sample()
    buffer.update_tensordict_priority(sample)
    assert "priority_weight" not in sample
    with pytest.warns(UserWarning, match="not prioritized"):
        buffer.update_priority(index, 2.0)


def test_priorities_of_sequences(made):
    buffer = made(sequence_length=3, batch_size=6, alpha=1.0)
    buffer.extend(episodes([3]))
    sample = buffer.sample()
    assert sample["priority_weight"].shape == torch.Size([6])
    sample["td_error"] = torch.tensor([1.0, 4.0, 2.0] * 2)
    buffer.update_tensordict_priority(sample)
    assert [it.info.priority for it in buffer._access.client.scan("replay")] == pytest.approx([4.0])
    with pytest.raises(InvalidArgumentError, match="all 3 steps of each sequence"):
        buffer.update_tensordict_priority(sample[:4])
    with pytest.raises(InvalidArgumentError, match="multiple of sequence_length=3, got 4"):
        buffer.sample(4)
