# SPDX-License-Identifier: Apache-2.0
"""Code of processes that use a buffer for TorchRL; they must be able to import it."""

import os

import torch
from tensordict import TensorDict
from torchrl.envs import GymEnv, TransformedEnv
from torchrl.envs.transforms import StepCounter

from reverb.errors import FailedPreconditionError
from support.torchrl_steps import episodes


def numbered(first, count):
    return TensorDict({"number": torch.arange(first, first + count)}, [count])


def write(buffer, first):
    index = buffer.extend(numbered(first, 50))
    buffer.update_priority(index[:1], 7.0)
    buffer.add(numbered(first + 50, 1)[0])
    # Sees what the others have written.
    os._exit(0 if buffer.sample(8).batch_size == torch.Size([8]) else 1)


def learn_for_ever(buffer, pipe):
    for turn in range(10**9):
        sample = buffer.sample(16)
        sample["td_error"] = torch.rand(16)
        buffer.update_tensordict_priority(sample)
        if turn == 20:
            pipe.send("learns")


def write_until_refused(buffer, pipe):
    """Writes on until a call says that it must not."""
    try:
        for turn in range(10**9):
            buffer.extend(episodes([3]))
            if turn == 3:
                pipe.send("writes")
    except FailedPreconditionError as error:
        pipe.send(str(error))


def make_env():
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
