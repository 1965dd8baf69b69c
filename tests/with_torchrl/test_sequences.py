# SPDX-License-Identifier: Apache-2.0
"""Sequences of consecutive steps as items."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from reverb.adapters.torchrl import ReverbReplayBuffer
from support.torchrl_steps import episodes


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
