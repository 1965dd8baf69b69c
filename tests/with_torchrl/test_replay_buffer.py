# SPDX-License-Identifier: Apache-2.0
"""The buffer beside TorchRL's own, given the same calls."""

import pickle
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorDict
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers.scheduler import LinearScheduler
from torchrl.envs.transforms import Compose, DoubleToFloat, RenameTransform

import reverb
from reverb.adapters.torchrl import ReverbReplayBuffer, tables
from reverb.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    UnimplementedError,
)

# Another batch size than that of the constructor is what some of these ask for.
pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes")

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@pytest.fixture
def made():
    """Makes buffers, and closes them."""
    buffers = []

    def make(*arguments, **options):
        buffers.append(ReverbReplayBuffer(*arguments, **options))
        return buffers[-1]

    yield make
    for buffer in reversed(buffers):
        buffer.close()


def steps(first, count):
    """Data whose rows tell which they are."""
    number = torch.arange(first, first + count)
    return TensorDict(
        {
            "number": number,
            "observation": number[:, None].float() + torch.arange(3),
            "next": TensorDict(
                {"reward": -number[:, None].double(), "done": number[:, None] % 7 == 6}, [count]
            ),
        },
        [count],
    )


def numbers(data):
    return data["number"].tolist()


# ---- Round trips ---------------------------------------------------------------------------------


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


# ---- Beside TorchRL's own ------------------------------------------------------------------------

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.just(1)),
        st.tuples(st.just("extend"), st.integers(1, 9)),
        st.tuples(st.just("empty"), st.booleans()),
        st.tuples(st.just("sample"), st.integers(1, 5)),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
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


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_weights_and_probabilities_are_those_of_the_librarys_sampler(made, alpha):
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


# ---- Transforms, prefetch, iteration -------------------------------------------------------------


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


# ---- Sequences -----------------------------------------------------------------------------------


def episodes(lengths):
    """Steps `[sum]` of whole episodes: the number of the episode, and of the step in it."""
    episode = torch.cat([torch.full((length,), at) for at, length in enumerate(lengths)])
    step = torch.cat([torch.arange(length) for length in lengths])
    done = torch.zeros(len(step), 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    size = [len(step)]
    following = TensorDict({"done": done, "truncated": torch.zeros_like(done)}, size)
    return TensorDict({"episode": episode, "step": step, "next": following}, size)


def windows(buffer):
    return sorted((item["episode"][0].item(), *item["step"].tolist()) for item in buffer.storage)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    length=st.integers(1, 4),
    cuts=st.lists(st.integers(1, 5), max_size=4),
)
def test_sequences_are_all_consecutive_steps_of_an_episode(lengths, length, cuts):
    buffer = ReverbReplayBuffer(sequence_length=length, batch_size=4 * length)
    data = episodes(lengths)
    while len(data):
        cut = cuts.pop() if cuts else len(data)
        assert (buffer.extend(data[:cut]) == -1).all()
        data = data[cut:]
    expected = sorted(
        (at, *range(start, start + length))
        for at, of_episode in enumerate(lengths)
        for start in range(of_episode - length + 1)
    )
    assert windows(buffer) == expected
    if expected:
        sample = buffer.sample()
        assert sample.batch_size == torch.Size([4 * length])
        grouped = sample.reshape(-1, length)
        assert (grouped["step"] - grouped["step"][:, :1] == torch.arange(length)).all()
        assert (grouped["index"] == grouped["index"][:, :1]).all()
        ends = grouped["next", "truncated"][..., 0]
        assert ends[:, -1].all()
        assert not ends[:, :-1].any()
        assert grouped["next", "done"][:, -1].all()
    buffer.close()


def test_sequences_of_several_environments_and_of_trajectories_that_change(made):
    buffer = made(sequence_length=3, batch_size=6)
    for turn in range(2):
        step = torch.arange(4).expand(2, 4) + 4 * turn
        # The second environment begins another trajectory without a word.
        ids = torch.tensor([[0], [1 + turn]]).expand(2, 4)
        collector = TensorDict({"traj_ids": ids}, [2, 4])
        data = {"episode": ids.clone(), "step": step.clone(), "collector": collector}
        buffer.extend(TensorDict(data, [2, 4]))
    long = [(0, at, at + 1, at + 2) for at in range(6)]
    short = [(1, 0, 1, 2), (1, 1, 2, 3), (2, 4, 5, 6), (2, 5, 6, 7)]
    assert windows(buffer) == sorted(long + short)


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


# ---- States --------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_a_state_has_the_items(made, tmp_path, alpha):
    buffer = made(alpha=alpha, batch_size=5)
    index = buffer.extend(steps(0, 6))
    if alpha:
        buffer.update_priority(index, torch.arange(1.0, 7.0))
        buffer.sampler.beta = 0.9
    before = contents(buffer)
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    buffer.dumps(tmp_path / "dump")
    buffer.extend(steps(6, 2))
    elsewhere = pickle.loads(pickle.dumps(buffer))
    for load in (
        lambda it: it.load_state_dict(torch.load(tmp_path / "state.pt")),
        lambda it: it.loads(tmp_path / "dump"),
    ):
        other = made(alpha=alpha)
        load(other)
        assert contents(other) == before
        assert (other.batch_size, other.write_count) == (5, 6)
        assert alpha is None or other.sampler.beta == 0.9
        other.extend(steps(6, 1))
        assert len(other) == 7
    # The address stays the same.
    buffer.loads(tmp_path / "dump")
    assert elsewhere.sample().batch_size == torch.Size([5])
    assert contents(elsewhere) == before
    with pytest.raises(InvalidArgumentError, match="loads its checkpoints itself"):
        elsewhere.loads(tmp_path / "dump")
    elsewhere.close()


def contents(buffer):
    return [
        (it.info.key, it.info.priority, [np.asarray(column).tobytes() for column in it.data])
        for it in buffer._access.client.scan(buffer.table)
    ]


def test_the_state_of_a_buffer_with_a_server_has_no_items(made):
    with reverb.Server(tables("replay", alpha=0.5)) as server:
        buffer = made(f"localhost:{server.port}", batch_size=3, beta=0.4)
        buffer.extend(steps(0, 3))
        state = buffer.state_dict()
        assert "_checkpoint" not in state
        buffer.sampler.beta = 1.0
        buffer.load_state_dict(state)
        assert (buffer.sampler.beta, len(buffer)) == (0.4, 3)


# ---- Servers and their tables --------------------------------------------------------------------


def test_who_only_samples_learns_the_fields(made):
    with reverb.Server([*tables("a"), *tables("b", alpha=0.6)]) as server:
        address = f"localhost:{server.port}"
        made(address, table="b").extend(steps(0, 5))
        reader = made(reverb.Client(address), table="b", batch_size=4)
        assert reader.sampler.alpha == pytest.approx(0.6)
        sample = reader.sample()
        assert (sample["next", "reward"][:, 0] == -sample["number"]).all()
        reader.sampler.alpha = 0.9
        assert made(address, table="b", alpha=0.9).sampler.alpha == 0.9


def test_a_signature_tells_the_fields_too(made):
    signature = {
        "number": reverb.specs.TensorSpec([None], np.int64),
        "next": {"reward": reverb.specs.TensorSpec([None, 1], np.float32)},
    }
    one = reverb.Table(
        "replay",
        reverb.selectors.Uniform(),
        reverb.selectors.Fifo(),
        100,
        reverb.rate_limiters.MinSize(1),
        signature=signature,
    )
    with reverb.Server([one]) as server:
        address = f"localhost:{server.port}"
        data = {"number": torch.arange(3), "next": {"reward": torch.ones(3, 1)}}
        made(address).extend(TensorDict(data, [3]))
        sample = made(address).sample(2)
        assert (sample["next", "reward"] == 1).all()
        assert sample["number"].dtype == torch.int64
        assert sample["next", "reward"].shape == torch.Size([2, 1])


def plain_table(**options):
    return reverb.Table(
        "replay",
        options.pop("sampler", reverb.selectors.Uniform()),
        reverb.selectors.Fifo(),
        100,
        options.pop("rate_limiter", reverb.rate_limiters.MinSize(1)),
        **options,
    )


def test_a_table_that_says_nothing_of_its_fields(made):
    with reverb.Server([plain_table()]) as server:
        address = f"localhost:{server.port}"
        writer = made(address)
        writer.extend(steps(0, 5))
        assert writer.sample(2).batch_size == torch.Size([2])
        with pytest.raises(InvalidArgumentError, match=r"no table replay\.fields"):
            made(address).sample(2)
        # A pickle has what its buffer has learned.
        again = pickle.loads(pickle.dumps(writer))
        assert again.sample(2).batch_size == torch.Size([2])
        again.close()


def test_a_closed_rate_limiter_lets_sample_wait(made):
    limiter = reverb.rate_limiters.MinSize(5)
    with reverb.Server(tables("replay", rate_limiter=limiter)) as server:
        buffer = made(f"localhost:{server.port}", batch_size=2, timeout_ms=50)
        buffer.extend(steps(0, 3))
        with pytest.raises(DeadlineExceededError, match="replay"):
            buffer.sample()
        patient = made(f"localhost:{server.port}", batch_size=2)
        found = []
        thread = threading.Thread(target=lambda: found.append(patient.sample()))
        thread.start()
        buffer.extend(steps(3, 2))
        thread.join(20)
        assert found[0].batch_size == torch.Size([2])


def test_wrong_tables(made):
    made_tables = [*tables("replay", alpha=0.6), *tables("queue", consume_after_n_samples=1)]
    with reverb.Server(made_tables) as server:
        address = f"localhost:{server.port}"
        for options, text in [
            ({"table": "other"}, r"has no table other; it has \['queue', 'queue.fields', 'rep"),
            ({"alpha": 0.7}, r"alpha=0.7 must be the exponent of table replay .* which is 0.6"),
            ({"table": "queue", "alpha": 0.7}, "alpha=0.7, but table queue .* leave alpha out"),
            (
                {"table": "queue", "beta": 0.7, "consume_after_n_samples": 1},
                "beta=0.7 is for tables that sample by priority",
            ),
            ({"consume_after_n_samples": 2}, "consume_after_n_samples=2 must be .* is None"),
            ({"table": "queue"}, "consume_after_n_samples=None must be .* which is 1"),
            ({"max_size": 5}, "max_size=5 is a setting of the table"),
        ]:
            with pytest.raises(InvalidArgumentError, match=text):
                made(address, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_size": 0}, "max_size must be at least 1, got 0"),
        ({"sequence_length": 0}, "sequence_length must be at least 1, got 0"),
        ({"consume_after_n_samples": 0}, "consume_after_n_samples must be at least 1, got 0"),
        ({"reduction": "best"}, "reduction must be one of .* got 'best'"),
        ({"storage": LazyTensorStorage(3)}, "storage must be None: a Reverb table takes its place"),
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


def test_parts_refuse_to_be_used_alone(made):
    buffer = made(batch_size=2, alpha=1.0)
    index = buffer.extend(steps(0, 3))
    text = "fetched with their batch; call buffer.sample()"
    for call in (
        lambda: buffer.storage.get(index),
        lambda: buffer[0],
        lambda: buffer.storage.set(0, steps(0, 1)),
        lambda: buffer.sampler.sample(buffer.storage, 2),
        lambda: buffer.sampler.state_dict(),
        lambda: buffer.writer.extend(steps(0, 1)),
    ):
        with pytest.raises(UnimplementedError, match=text):
            call()
    assert (buffer.storage.max_size, buffer.storage.device.type) == (1_000_000, "cpu")
    assert buffer.can_sample(2)


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
    assert time.monotonic() - started < 20
    other = made(batch_size=2)
    other.shutdown()
    assert not other.is_alive
