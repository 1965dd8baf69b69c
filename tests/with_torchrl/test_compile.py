# SPDX-License-Identifier: Apache-2.0
"""Calls of a buffer inside of compiled functions."""

import pytest
import torch
import torch._dynamo
from tensordict import TensorDict


@pytest.mark.parametrize("options", [{}, {"alpha": 0.6}, {"sequence_length": 2}], ids=str)
def test_calls_are_not_compiled_anew(made, options):
    buffer = made(max_size=100, batch_size=8, compilable=True, **options)
    data = TensorDict({"a": torch.arange(32.0), "episode": torch.arange(32) // 8}, [32])
    buffer.extend(data.clone())
    compiled = []

    def count(module, inputs):
        del inputs
        compiled.append(module)
        return module.forward

    @torch.compile(backend=count)
    def step(data):
        buffer.extend(data * 1)
        buffer.add((data * 1)[0])
        sample = buffer.sample()
        sample["td_error"] = (sample["a"] + 1.0).abs()
        buffer.update_tensordict_priority(sample)
        return sample["a"].sum()

    torch._dynamo.reset()
    step(data)
    first = len(compiled)
    for _ in range(5):
        step(data)
    assert len(compiled) == first
    assert buffer.write_count > 100
