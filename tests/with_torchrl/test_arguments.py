# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments and wrong data, and calls that a table has no answer to."""

import pytest
import torch
from tensordict import NonTensorData, TensorDict
from torchrl.data import LazyTensorStorage, RandomSampler, RoundRobinWriter
from torchrl.data.replay_buffers.sample_units import Transition

from reverb.adapters.torchrl import ReverbReplayBuffer
from reverb.errors import InvalidArgumentError, UnimplementedError
from support.torchrl_steps import steps


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_size": 0}, "max_size must be at least 1, got 0"),
        ({"sequence_length": 0}, "sequence_length must be at least 1, got 0"),
        ({"consume_after_n_samples": 0}, "consume_after_n_samples must be at least 1, got 0"),
        ({"reduction": "best"}, "reduction must be one of .* got 'best'"),
        (
            {"storage": LazyTensorStorage(3)},
            "storage must be None: .* max_size is its size; got LazyTensorStorage",
        ),
        ({"sampler": RandomSampler()}, "sampler must be None: .* alpha samples by priority"),
        ({"writer": RoundRobinWriter()}, "writer must be None"),
        ({"collate_fn": len}, "collate_fn must be None: .* give a transform"),
        ({"sample_unit": Transition()}, "sample_unit must be None: sequence_length samples"),
        ({"dim_extend": 1}, "dim_extend must be None: each row .* got 1"),
        ({"transport": "distributed"}, "transport must be None: the address"),
        (
            {"server": "localhost:1", "generator": torch.Generator()},
            "generator must be None with a server",
        ),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        ReverbReplayBuffer(**options)
    with pytest.raises(TypeError, match="no argument alhpa"):
        ReverbReplayBuffer(alhpa=1)
    with pytest.raises(ValueError, match="needs batch_size"):
        ReverbReplayBuffer(prefetch=1)
    with pytest.raises(ValueError, match="not supported when consume_after_n_samples"):
        ReverbReplayBuffer(prefetch=1, batch_size=1, consume_after_n_samples=1)


def test_arguments_that_do_no_harm(made):
    buffer = made(
        storage=None,
        dim_extend=0,
        compilable=True,
        delayed_init=True,
        service_backend="direct",
        transport="auto",
        checkpointer=None,
        batch_size=2,
    )
    buffer.extend(steps(0, 3))
    assert buffer.sample().batch_size == torch.Size([2])


def test_wrong_data(made):
    buffer = made(batch_size=2, alpha=1.0)
    index = buffer.extend(steps(0, 3))
    for data, text in [
        (steps(0, 3).exclude("number"), r"\['number'\] are missing, \[\] are new"),
        (
            steps(0, 3).set("number", torch.ones(3)),
            r"number .* torch.int64 \[\], got torch.float32",
        ),
        (steps(0, 3).set("number", torch.ones(3, 2).long()), r"got torch.int64 \[2\]"),
        (steps(0, 3).set("why", NonTensorData("x", [3])), "why must be a tensor .* data.exclude"),
        (TensorDict({}, [3]), "at least one tensor, got none"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            buffer.extend(data)
    with pytest.raises(ValueError, match="takes TensorDicts, got dict"):
        buffer.extend({"number": torch.ones(3)})
    with pytest.raises(InvalidArgumentError, match="a value for each of 3 indices"):
        buffer.update_priority(index, torch.ones(2))
    with pytest.raises(InvalidArgumentError):
        buffer.update_priority(index, torch.tensor([1.0, float("nan"), 1.0]))
    assert len(buffer) == 3


def test_what_has_no_answer_says_what_to_do(made):
    buffer = made(batch_size=2, alpha=1.0)
    index = buffer.extend(steps(0, 3))
    row = steps(0, 1)
    for text, calls in {
        r"not looked up by their index: buffer.sample\(\) .* buffer\[a:b\]": (
            lambda: buffer[0],
            lambda: buffer[index],
            lambda: buffer.storage[0],
            lambda: buffer.storage.get(index),
            lambda: 0 in buffer.storage,
        ),
        r"do not change and have no positions; add new ones with buffer.extend\(\)": (
            lambda: buffer.__setitem__(0, row),
            lambda: buffer.__setitem__(slice(None), steps(0, 3)),
            lambda: buffer.__setitem__("number", torch.zeros(3)),
            lambda: buffer.set_("number", torch.zeros(3)),
            lambda: buffer.set_at_("number", torch.zeros(1), torch.tensor([0])),
            lambda: buffer.update_({"number": torch.zeros(3)}),
            lambda: buffer.write_all(steps(0, 3)),
            lambda: buffer.storage.set(0, row),
            lambda: buffer.storage.__setitem__(0, row),
            lambda: buffer.writer.extend(row),
        ),
        r"draws and sends items with their index; call buffer.sample\(\)": (
            lambda: buffer.sampler.sample(buffer.storage, 2),
        ),
        r"call buffer.state_dict\(\) or buffer.dumps\(\)": (
            lambda: buffer.sampler.state_dict(),
            lambda: buffer.storage.dumps("."),
            lambda: buffer.writer.loads("."),
        ),
        "the server knows the priority of new items": (lambda: buffer.sampler.default_priority,),
        "make another buffer": (
            lambda: buffer.set_storage(LazyTensorStorage(3)),
            lambda: buffer.set_sampler(RandomSampler()),
            lambda: buffer.set_writer(RoundRobinWriter()),
        ),
    }.items():
        for call in calls:
            with pytest.raises(UnimplementedError, match=text):
                call()
    # TorchRL's own words.
    with pytest.raises(RuntimeError, match="Conditional updates are not supported by TableStorage"):
        buffer.update_if_present(
            index=index, generation=index, patch={"number": torch.zeros(3, dtype=torch.long)}
        )
    assert (buffer.storage.max_size, buffer.storage.device.type) == (1_000_000, "cpu")
    assert buffer.can_sample(2)
    assert [it["number"].item() for it in buffer.storage] == [0, 1, 2]
