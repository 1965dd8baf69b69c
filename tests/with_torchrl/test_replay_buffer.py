# SPDX-License-Identifier: Apache-2.0
"""The buffer beside TorchRL's own, given the same calls."""

import pickle
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers.scheduler import LinearScheduler
from torchrl.envs.transforms import Compose, DoubleToFloat, RenameTransform

import reverb
from reverb.adapters.torchrl import ReverbReplayBuffer
from reverb.errors import FailedPreconditionError, UnavailableError
from support.dtypes import FLOATS
from support.torchrl_steps import numbers, steps
from support.waiting import PATIENCE

# Another batch size than that of the constructor is what some of these ask for.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    *(getattr(torch, name) for name in FLOATS),
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("size", [3, 5, 100])
@pytest.mark.parametrize("options", [{}, {"alpha": 0.8, "beta": 0.9}], ids=["uniform", "priority"])
def test_what_is_written_is_what_is_sampled(made, size, options):
    buffer = made(max_size=size, batch_size=3, storage=None, prefetch=0, **options)
    for _ in range(2):
        datum = steps(0, 1)[0]
        index = buffer.add(datum)
        row = buffer.sample(1)[0]
        assert row["index"] == datum["index"] == index
        kept = row.select(*datum.keys(True))
        assert (kept == datum).all()
        buffer.empty()
        with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
            buffer.sample()
    data = steps(10, 5)
    buffer.extend(data)
    assert len(buffer) == min(size, 5)
    assert [it["number"].item() for it in buffer.storage] == numbers(data)[-size:]
    for row in buffer.sample():
        (same,) = [it for it in data if it["number"] == row["number"]]
        assert (row.select(*same.keys(True)) == same).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(made, dtype):
    buffer = made(batch_size=64)
    values = (torch.randn(8, 2, 3) * 9).to(dtype)
    buffer.extend(TensorDict({"a": {"b": values}, "scalar": values[:, 0, 0]}, [8]))
    sample = buffer.sample()
    place = {key: i for i, key in enumerate(it["index"].item() for it in rows(buffer))}
    found = torch.tensor([place[key] for key in sample["index"].tolist()])
    assert sample["a", "b"].dtype == dtype
    assert torch.equal(sample["a", "b"], values[found])
    assert torch.equal(sample["scalar"], values[found, 0, 0])
    assert sample.batch_size == sample["a"].batch_size == torch.Size([64])


def rows(buffer):
    """The items with their indices, the oldest one first."""
    for sample in buffer._access.client.scan(buffer.table):
        yield {"index": torch.tensor(np.uint64(sample.info.key).view(np.int64))}


def test_gradients_are_left_out(made):
    buffer = made(batch_size=2)
    buffer.extend(TensorDict({"a": torch.ones(2, requires_grad=True) * 2}, [2]))
    assert not buffer.sample()["a"].requires_grad


def test_trajectories_are_items_with_a_batch_size_of_their_own(made):
    buffer = made(batch_size=4, alpha=0.7, reduction="mean")
    data = TensorDict({"obs": torch.randn(3, 5, 2)}, [3, 5])
    buffer.extend(data)
    sample = buffer.sample()
    assert sample.batch_size == torch.Size([4, 5])
    assert sample["index"].shape == sample["priority_weight"].shape == torch.Size([4, 5])
    sample["td_error"] = torch.arange(5.0).expand(4, 5)
    buffer.update_tensordict_priority(sample)
    found = {it.info.priority for it in buffer._access.client.scan("replay")}
    assert max(found) == pytest.approx(2.0)


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.just(1)),
        st.tuples(st.just("extend"), st.integers(1, 9)),
        st.tuples(st.just("empty"), st.booleans()),
        st.tuples(st.just("sample"), st.integers(1, 5)),
    ),
    max_size=12,
)


@settings(max_examples=25)
@given(calls=CALLS, size=st.integers(1, 12))
def test_the_same_calls_give_the_same_contents(calls, size):
    ours = ReverbReplayBuffer(max_size=size)
    theirs = TensorDictReplayBuffer(storage=LazyTensorStorage(size))
    first = 0
    for name, argument in calls:
        if name == "empty":
            ours.empty(empty_write_count=argument)
            theirs.empty(empty_write_count=argument)
        elif name == "sample" and not len(theirs):
            for buffer in (ours, theirs):
                with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
                    buffer.sample(argument)
        elif name == "sample":
            samples = [buffer.sample(argument) for buffer in (ours, theirs)]
            mine, wanted = ((it.batch_size, set(it.keys(True, True))) for it in samples)
            assert mine == wanted
        else:
            for buffer in (ours, theirs):
                data = steps(first, argument)
                buffer.add(data[0]) if name == "add" else buffer.extend(data)
            first += argument
        assert (len(ours), ours.write_count) == (len(theirs), theirs.write_count)
        kept = sorted(it["number"].item() for it in ours.storage)
        assert kept == (sorted(theirs[:]["number"].tolist()) if len(theirs) else [])
        assert ours.stats().items() >= {"size": len(theirs), "capacity": size}.items()
    ours.close()


def test_a_trainers_loop(made):
    buffer = made(max_size=500, batch_size=32, alpha=0.6, beta=0.4, prefetch=2)
    assert isinstance(buffer.sampler, PrioritizedSampler)
    schedule = LinearScheduler(buffer, param_name="beta", final_value=1.0, num_steps=10)
    for turn in range(10):
        buffer.extend(steps(100 * turn, 100))
        for _ in range(3):
            sample = buffer.sample()
            assert (sample["next", "reward"][:, 0] == -sample["number"]).all()
            sample["td_error"] = sample["number"].float()
            buffer.update_tensordict_priority(sample)
        schedule.step()
    assert buffer.sampler.beta == pytest.approx(1.0)
    assert (len(buffer), buffer.write_count) == (500, 1000)


def test_transforms(made):
    transform = Compose(
        DoubleToFloat(in_keys=[("next", "reward")]), RenameTransform(["number"], ["n"])
    )
    buffer = made(batch_size=4, transform=transform)
    buffer.append_transform(lambda data: data.set("twice", data["n"] * 2))
    buffer.extend(steps(0, 6))
    sample = buffer.sample()
    assert "number" not in sample
    assert (sample["twice"] == sample["n"] * 2).all()
    assert sample["next", "reward"].dtype == torch.float32
    again = pickle.loads(pickle.dumps(made(batch_size=4, transform=DoubleToFloat(["a"]))))
    again.extend(TensorDict({"a": torch.ones(3)}, [3]))
    assert again.sample()["a"].dtype == torch.float32
    again.close()


def test_batches_are_really_fetched_ahead(made):
    buffer = made(batch_size=4, prefetch=3)
    buffer.extend(steps(0, 8))
    buffer.sample()
    assert len(buffer._prefetch_queue) == 3
    buffer.synchronize()
    sampled = buffer._access.info().rate_limiter_info.sample_stats.completed
    assert sampled == 4 * 4
    buffer.empty()
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        buffer.sample()


def test_iteration(made):
    buffer = made(batch_size=4)
    buffer.extend(steps(0, 8))
    for at, batch in enumerate(buffer):
        assert batch.batch_size == torch.Size([4])
        if at == 3:
            break
    sample, info = buffer.sample(return_info=True)
    assert torch.equal(sample["index"], info["index"])


@pytest.mark.parametrize("options", [{}, {"alpha": 0.6}, {"generator": True}], ids=str)
def test_a_seed_makes_samples_reproducible(made, options):
    found = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5) if "generator" in options else None
        if generator is None:
            torch.manual_seed(5)
        buffer = made(batch_size=20, **{**options, "generator": generator})
        buffer.extend(steps(0, 50))
        found.append(numbers(buffer.sample()) + numbers(buffer.sample()))
    assert found[0] == found[1]


def test_iteration_ends_when_items_are_consumed(made):
    buffer = made(batch_size=2, consume_after_n_samples=1)
    for first in (0, 10):
        buffer.extend(steps(first, 5))
        found = [numbers(batch) for batch in buffer]
        assert [len(batch) for batch in found] == [2, 2, 1]
        every = sorted(number for batch in found for number in batch)
        assert every == list(range(first, first + 5))
    assert list(buffer) == []
    with pytest.raises(RuntimeError, match="Batch_size was not specified"):
        next(iter(made()))


@pytest.mark.parametrize("times", [1, 2])
def test_items_are_consumed(made, times):
    buffer = made(batch_size=3, consume_after_n_samples=times)
    buffer.extend(steps(0, 5))
    found = []
    while len(buffer):
        batch = numbers(buffer.sample())
        assert len(set(batch)) == len(batch)
        found += batch
    assert sorted(found) == sorted([*range(5)] * times)
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        buffer.sample()


def test_a_closed_buffer_says_so(made):
    buffer = made(batch_size=2)
    buffer.extend(steps(0, 3))
    reader = made(reverb.Client(buffer.server, connect_timeout_s=0.2), batch_size=2)
    reader.sample()
    buffer.close()
    for call in (buffer.sample, lambda: buffer.extend(steps(0, 1)), lambda: len(buffer)):
        with pytest.raises(FailedPreconditionError, match="the replay buffer is closed"):
            call()
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=reader.server):
        reader.sample()
    assert time.monotonic() - started < 20 * PATIENCE
    other = made(batch_size=2)
    other.shutdown()
    assert not other.is_alive
