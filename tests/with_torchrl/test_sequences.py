# SPDX-License-Identifier: Apache-2.0
"""Sequences of consecutive steps as items."""

import pickle
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.modules import LSTMModule, set_recurrent_mode

import reverb
from reverb.adapters.torchrl import ReverbReplayBuffer, tables
from reverb.errors import InvalidArgumentError, SignatureMismatchError
from support.torchrl_steps import episodes
from support.waiting import DEADLINE_S


def windows(buffer):
    return sorted((item["episode"][0].item(), *item["step"].tolist()) for item in buffer.storage)


@settings(max_examples=15)
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


def test_sequences_of_environments_and_changing_trajectories(made):
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


def test_a_recurrent_module_begins_anew_with_each_sequence(made):
    steps, length, size = 60, 8, 5
    begins = torch.zeros(steps, 1, dtype=torch.bool)
    begins[::20] = True
    hidden = torch.zeros(steps, 1, size)
    following = {"done": begins.roll(-1, 0), "h": hidden, "c": hidden}
    data = {"obs": torch.randn(steps, 3), "is_init": begins, "h": hidden, "c": hidden}
    buffer = made(sequence_length=length, batch_size=4 * length)
    buffer.extend(TensorDict({**data, "next": following}, [steps]))
    sample = buffer.sample()
    lstm = LSTMModule(
        input_size=3,
        hidden_size=size,
        in_keys=["obs", "h", "c"],
        out_keys=["f", ("next", "h"), ("next", "c")],
    )
    with torch.no_grad(), set_recurrent_mode(True):
        flat = lstm(sample.clone())["f"].reshape(4, length, size)
        alone = torch.stack([lstm(it.clone())["f"] for it in sample.reshape(4, length).unbind(0)])
    assert torch.allclose(flat, alone, atol=1e-6)


def test_marks_have_the_shape_of_the_flags(made):
    """Flags of several agents, or without an axis of their own."""
    for shape in ((), (1,), (3, 1)):
        flags = torch.zeros(6, *shape, dtype=torch.bool)
        data = {"a": torch.arange(6), "next": {"done": flags, "terminated": flags}}
        buffer = made(sequence_length=2, batch_size=8)
        buffer.extend(TensorDict(data, [6]))
        sample = buffer.sample()
        for name in ("done", "truncated"):
            found = sample["next", name]
            assert found.shape == torch.Size([8, *shape])
            assert found.reshape(4, 2, -1).all(-1).tolist() == [[False, True]] * 4
        assert not sample["next", "terminated"].any()


def test_steps_without_an_episode_are_refused(made):
    buffer = made(sequence_length=2, batch_size=2)
    data = TensorDict({"a": torch.arange(4), "life": torch.arange(4) // 2}, [4])
    with pytest.raises(InvalidArgumentError, match=r"mark the ends of episodes.*'next.done'.*_key"):
        buffer.extend(data)
    assert len(buffer) == 0
    named = made(sequence_length=2, traj_key="life")
    named.extend(data)
    assert [it["a"].tolist() for it in named.storage] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"traj_key": "a"}, "traj_key='a' is for sequences; give sequence_length"),
        ({"init_key": None}, "init_key=None is for sequences"),
        ({"end_key": "a", "end_keys": ["b"], "sequence_length": 2}, "exclude each other"),
        ({"end_keys": "done", "sequence_length": 2}, "end_keys must be a sequence of at least one"),
        ({"end_keys": [], "sequence_length": 2}, "end_keys must be a sequence of at least one"),
        ({"end_key": 3, "sequence_length": 2}, "end_key must be a name or a tuple of names, got 3"),
    ],
    ids=str,
)
def test_keys_that_make_no_sense(made, options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        made(**options)


def test_keys_go_into_pickles(made):
    buffer = made(sequence_length=2, batch_size=2, traj_key="life", init_key="first")
    data = {"a": torch.arange(4), "life": torch.arange(4) // 2, "first": torch.zeros(4).bool()}
    again = pickle.loads(pickle.dumps(buffer))
    again.extend(TensorDict(data, [4]))
    assert again.sample()["first"].tolist() == [True, False]
    assert [it["a"].tolist() for it in buffer.storage] == [[0, 1], [2, 3]]
    again.close()


@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_priorities_in_the_data_are_those_of_the_sequences(made, reduction):
    buffer = made(sequence_length=2, alpha=1.0, batch_size=2, reduction=reduction)
    values = torch.tensor([[1.0, 5.0, 3.0, 2.0], [4.0, 4.0, 8.0, 0.0]])
    flags = torch.zeros(2, 4, 1, dtype=torch.bool)
    data = {"td_error": values, "next": {"done": flags}}
    for part in (slice(1), slice(1, 4)):
        buffer.extend(TensorDict(data, [2, 4])[:, part])
    windows = values.unfold(1, 2, 1)
    expected = windows.amax(-1) if reduction == "max" else windows.mean(-1)
    assert priorities(buffer) == pytest.approx(expected.T.flatten().tolist())
    buffer.empty()
    buffer.extend(TensorDict(data, [2, 4]), update_priority=False)
    assert priorities(buffer) == [1.0] * 6
    buffer.empty()
    for step in TensorDict(data, [2, 4])[0].unbind(0):
        buffer.add(step)
    assert priorities(buffer) == pytest.approx(expected[0].tolist())


def priorities(buffer):
    return [it.info.priority for it in buffer._access.client.scan(buffer.table)]


def test_threads_write_one_after_another(made):
    buffer = made(sequence_length=5, batch_size=5)

    def write(first):
        for at in range(20):
            data = {"a": torch.arange(5), "episode": torch.full((5,), first + at)}
            buffer.extend(TensorDict(data, [5]))

    threads = [threading.Thread(target=write, args=(100 * at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_S)
    assert len(buffer) == 80
    for item in buffer.storage:
        assert item["a"].tolist() == list(range(5))


def test_what_follows_a_failed_call_begins_an_episode(made):
    buffer = made(sequence_length=2, batch_size=2)
    data = episodes([8])
    buffer.extend(data[:3])
    with pytest.raises(SignatureMismatchError):
        buffer.extend(data[3:4].exclude("step"))
    # Nothing of it was written.
    buffer.extend(data[3:5])
    assert [it["step"].tolist() for it in buffer.storage] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    writer, buffer._sequences._writer = buffer._sequences._writer, Broken()
    with pytest.raises(KeyboardInterrupt):
        buffer.extend(data[5:6])
    buffer.extend(data[6:])
    assert [it["step"].tolist() for it in buffer.storage][4:] == [[6, 7]]
    writer.close()


class Broken:
    """A writer that was interrupted."""

    def append(self, data):
        raise KeyboardInterrupt


def test_nothing_is_written_of_no_steps(made):
    buffer = made(sequence_length=2, batch_size=2)
    data = episodes([4])
    for part in (data[:0], data[:2], data[2:2], data[2:]):
        assert buffer.extend(part).tolist() == [-1] * len(part)
    assert len(buffer) == 3


def test_a_step_of_several_environments(made):
    buffer = made(sequence_length=2, batch_size=2)
    first, second = episodes([3, 3]).reshape(2, 3).unbind(0)
    for at in range(3):
        assert buffer.add(torch.stack([first[at], second[at]])) == -1
    assert windows(buffer) == [(0, 0, 1), (0, 1, 2), (1, 0, 1), (1, 1, 2)]


@pytest.mark.parametrize("length", [None, 2, 4])
def test_items_have_the_length_that_was_asked_for(made, length):
    with reverb.Server(tables("replay")) as server:
        address = f"localhost:{server.port}"
        made(address, sequence_length=3).extend(episodes([5]))
        reader = made(address, sequence_length=length, batch_size=12)
        for read in (reader.sample, lambda: reader[:], lambda: next(reader.scan())):
            with pytest.raises(InvalidArgumentError, match=r"have 3 in field|sequence_length=3"):
                read()
