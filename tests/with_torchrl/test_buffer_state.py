# SPDX-License-Identifier: Apache-2.0
"""States of buffers, in memory and as files."""

import os
import pickle

import numpy as np
import pytest
import torch

import reverb
from reverb.adapters.torchrl import tables
from reverb.errors import InvalidArgumentError
from support.torchrl_steps import steps


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


@pytest.mark.parametrize("name", ["checkpoint.tar", "buffer_metadata.json"])
def test_a_file_of_a_state_that_is_a_pipe_is_refused(made, tmp_path, name):
    buffer = made(batch_size=5)
    buffer.extend(steps(0, 6))
    buffer.dumps(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match=f"is not a file.*{name}"):
        made().loads(tmp_path)


def test_the_state_of_a_buffer_with_a_server_has_no_items(made):
    with reverb.Server(tables("replay", alpha=0.5)) as server:
        buffer = made(f"localhost:{server.port}", batch_size=3, beta=0.4)
        buffer.extend(steps(0, 3))
        state = buffer.state_dict()
        assert "_checkpoint" not in state
        buffer.sampler.beta = 1.0
        buffer.load_state_dict(state)
        assert (buffer.sampler.beta, len(buffer)) == (0.4, 3)
