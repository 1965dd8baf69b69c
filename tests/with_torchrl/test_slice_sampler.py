# SPDX-License-Identifier: Apache-2.0
"""Samples of sequences, field by field beside those of TorchRL's `SliceSampler`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

from reverb.adapters.torchrl import ReverbReplayBuffer
from reverb.errors import InvalidArgumentError
from support.examples import fast_and_thorough

# Another batch size than that of the constructor is what some of these ask for.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

FLAGS = [("next", "done"), ("next", "terminated"), ("next", "truncated"), "is_init", "end"]
IDS = ["episode", ("collector", "traj_ids"), "traj"]
# More than 25 for each window: theirs draws one of at most 72 pairs of a trajectory and a start.
NUM_SLICES = 2000


@st.composite
def stored(draw):
    """Steps `[T]` or `[N, T]`: their flags, and numbers of trajectories."""
    num_lanes = draw(st.sampled_from([1, 1, 2]))
    num_steps = draw(st.integers(2, 8))
    shape = (num_lanes, num_steps)
    data = TensorDict({"number": torch.arange(num_lanes * num_steps).reshape(shape)}, shape)
    often = draw(st.integers(2, 6))

    def flags():
        found = draw(st.lists(st.integers(0, often), min_size=data.numel(), max_size=data.numel()))
        return torch.tensor(found).reshape(shape) == 0

    for path in draw(st.sets(st.sampled_from(FLAGS))):
        data[path] = flags()[..., None]
    for path in draw(st.sets(st.sampled_from(IDS), max_size=2)):
        data[path] = flags().long().cumsum(1)
    return data if num_lanes > 1 else data[0]


KEYS = st.fixed_dictionaries(
    {},
    optional={
        "traj_key": st.sampled_from([*IDS, "none"]),
        "truncated_key": st.sampled_from([None, ("next", "truncated"), "cut"]),
        "init_key": st.sampled_from([None, "is_init", "begins"]),
    },
)
ENDS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"end_key": st.sampled_from([*FLAGS, ("next", "none")])}),
    st.fixed_dictionaries(
        {"end_keys": st.lists(st.sampled_from(FLAGS), min_size=1, max_size=3, unique=True)}
    ),
)


@fast_and_thorough(25, 600)
def test_samples_are_those_of_the_librarys_sampler(max_examples):
    @settings(max_examples=max_examples)
    @given(stored(), st.integers(1, 4), KEYS, ENDS, st.integers(1, 7))
    def check(data, length, keys, ends, cut):
        compare(data, length, keys | ends, cut)

    check()


def compare(data, length, keys, cut):
    wanted, why_none = of_theirs(data, length, keys)
    found, why_not = of_ours(data, length, keys, cut)
    if why_none and "sufficient length" not in why_none:
        # It finds nothing that ends episodes; here, some more is looked at.
        others = {*FLAGS[:3], *IDS[:2]} & set(data.keys(True))
        assert others or "data must mark the ends of episodes" in why_not
        return
    assert why_not is None
    assert found.keys() == wanted.keys()
    for numbers, window in wanted.items():
        assert found[numbers].keys() == window.keys()
        for path, value in window.items():
            mine = found[numbers][path]
            assert (mine.dtype, mine.shape) == (value.dtype, value.shape), path
            assert torch.equal(mine, value), (path, numbers)


def of_theirs(data, length, keys):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(data.numel(), ndim=data.ndim),
        sampler=SliceSampler(slice_len=length, strict_length=True, **keys),
    )
    buffer.extend(data.clone())
    try:
        return slices(buffer.sample(NUM_SLICES * length), length), None
    except (KeyError, RuntimeError) as error:
        return {}, str(error)


def of_ours(data, length, keys, cut):
    buffer = ReverbReplayBuffer(sequence_length=length, **keys)
    try:
        # Episodes go on from one call to the next.
        for part in (data[..., :cut], data[..., cut:]):
            buffer.extend(part.clone())
        return slices(buffer.sample(NUM_SLICES * length), length) if len(buffer) else {}, None
    except InvalidArgumentError as error:
        return {}, str(error)
    finally:
        buffer.close()


def slices(sample, length):
    """The fields of each sequence of a sample, by the numbers of its steps."""
    fields = sample.exclude("index")
    paths = list(fields.keys(True, True))
    rows = {path: fields[path].reshape(-1, length, *fields[path].shape[1:]) for path in paths}
    numbers = [tuple(it) for it in rows["number"].tolist()]
    return {it: {path: rows[path][at] for path in paths} for at, it in enumerate(numbers)}
