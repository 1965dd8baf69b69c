# SPDX-License-Identifier: Apache-2.0
"""TensorDicts of steps that tell which they are."""

import torch
from tensordict import TensorDict


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


def episodes(lengths):
    """Steps `[sum]` of whole episodes: the number of the episode, and of the step in it."""
    episode = torch.cat([torch.full((length,), at) for at, length in enumerate(lengths)])
    step = torch.cat([torch.arange(length) for length in lengths])
    done = torch.zeros(len(step), 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    size = [len(step)]
    following = TensorDict({"done": done, "truncated": torch.zeros_like(done)}, size)
    return TensorDict({"episode": episode, "step": step, "next": following}, size)
