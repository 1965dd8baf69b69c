# SPDX-License-Identifier: Apache-2.0
"""States of buffers, in memory and as files."""

import copy
import json
import multiprocessing
import os
import pathlib
import pickle

import numpy as np
import pytest
import torch
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose, DoubleToFloat, ObservationNorm

import reverb
from reverb.adapters.torchrl import tables
from reverb.errors import DataLossError, InvalidArgumentError
from support.torchrl_steps import episodes, numbers, steps
from support.torchrl_workers import write_until_refused
from support.waiting import DEADLINE_S


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


# ---- States that cannot be loaded ----------------------------------------------------------------


@pytest.fixture
def refused(made):
    """Checks that a buffer refuses to load and is as it was, and that its calls go on."""

    def check(load, match, error=InvalidArgumentError, **options):
        buffer = made(batch_size=4, timeout_ms=20_000, **options)
        buffer.extend(steps(100, 7))
        before = contents(buffer), numbers_of(buffer)
        with pytest.raises(error, match=match):
            load(buffer)
        assert (contents(buffer), numbers_of(buffer)) == before
        buffer.extend(steps(107, 1))
        assert (len(buffer), buffer.write_count) == (8, 8)
        assert set(numbers(buffer.sample())) <= set(range(100, 108))

    return check


def numbers_of(buffer):
    return buffer.batch_size, buffer.alpha, getattr(buffer.sampler, "beta", None)


@pytest.fixture
def saved(made, tmp_path):
    """The state of a buffer with many items, as a dict and as files."""
    buffer = made(batch_size=9)
    buffer.extend(steps(0, 500))
    buffer.dumps(tmp_path / "dump")
    return buffer.state_dict(), tmp_path / "dump"


@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.7, 0.95])
@pytest.mark.parametrize("damage", ["byte", "end"])
def test_damaged_items_leave_the_buffer_as_it_was(refused, saved, place, damage):
    state, path = saved
    items = state["_checkpoint"]
    # The blocks after the last file in an archive are empty.
    at = int(place * (len(items.numpy().tobytes().rstrip(b"\0")) - 1))
    if damage == "byte":
        items[at] ^= 255
    else:
        state["_checkpoint"] = items[:at].clone()
    refused(lambda it: it.load_state_dict(state), "damaged", DataLossError)
    (path / "checkpoint.tar").write_bytes(state["_checkpoint"].numpy().tobytes())
    refused(lambda it: it.loads(path), "damaged", DataLossError)


@pytest.mark.parametrize("key", ["_transforms", "batch_size", "alpha", "beta", "sequence_length"])
def test_half_a_state_is_refused(refused, saved, key):
    state, path = saved
    del state[key]
    refused(lambda it: it.load_state_dict(state), f"not the state of a Rever.* has no {key}")
    if key != "_transforms":
        saved_numbers = json.loads((path / "buffer_metadata.json").read_text())
        del saved_numbers[key]
        (path / "buffer_metadata.json").write_text(json.dumps(saved_numbers))
        refused(lambda it: it.loads(path), f"not the state of a Rever.* has no {key}")


@pytest.mark.parametrize("name", ["buffer_metadata.json", "transform.t", "checkpoint.tar"])
def test_a_directory_that_lacks_a_file_is_refused(refused, saved, name):
    _, path = saved
    (path / name).unlink()
    refused(lambda it: it.loads(path), f"has no ({name}|items)")


@pytest.mark.parametrize("name", ["buffer_metadata.json", "transform.t"])
@pytest.mark.parametrize("content", [b"", b"\xff{", b"[1]"])
def test_files_of_something_else_are_refused(refused, saved, name, content):
    _, path = saved
    (path / name).write_bytes(content)
    errors = (DataLossError, InvalidArgumentError)
    refused(lambda it: it.loads(path), name, errors)


@pytest.mark.parametrize(
    ("key", "value"),
    [("batch_size", "9"), ("beta", True), ("_checkpoint", b"x"), ("_checkpoint", torch.ones(9))],
)
def test_values_of_another_type_are_refused(refused, saved, key, value):
    state, _ = saved
    state[key] = value
    refused(lambda it: it.load_state_dict(state), f"not the state of a Reverb.*{key}")


def test_what_other_buffers_saved_is_refused(refused, made, tmp_path):
    own = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    own.extend(steps(0, 10))
    own.dumps(tmp_path / "own")
    for load in (
        lambda it: it.loads(tmp_path / "own"),
        lambda it: it.load_state_dict(own.state_dict()),
        lambda it: it.load_state_dict([]),
    ):
        refused(load, "not the state of a ReverbReplayBuffer: .* may be given to extend")
    with reverb.Server(tables("replay")) as server:
        with_server = made(f"localhost:{server.port}", batch_size=4)
        with_server.extend(steps(0, 10))
        # Over the dump of another, whose items must not be taken for its own.
        made().dumps(tmp_path / "server")
        with_server.dumps(tmp_path / "server")
        state = with_server.state_dict()
    refused(lambda it: it.loads(tmp_path / "server"), "has no items: a buffer with a server")
    refused(lambda it: it.load_state_dict(state), "has no items: a buffer with a server")
    other = made(table="other")
    refused(
        lambda it: it.load_state_dict(other.state_dict()), r"has the tables \['other', 'other.f"
    )


KINDS = {
    "uniform": {},
    "priority": {"alpha": 0.5},
    "consuming": {"consume_after_n_samples": 2},
    "both": {"alpha": 0.5, "consume_after_n_samples": 2},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_the_state_of_another_kind_of_sampler_is_refused(refused, made, tmp_path, kind, other):
    if kind == other:
        return
    saved = made(**KINDS[other])
    saved.extend(steps(0, 3))
    saved.dumps(tmp_path)
    state = saved.state_dict()
    if "consume_after_n_samples" not in KINDS[kind]:
        refused(lambda it: it.load_state_dict(state), "another kind of sampler", **KINDS[kind])
        refused(lambda it: it.loads(tmp_path), "another kind of sampler", **KINDS[kind])
    with reverb.Server(tables("replay", **KINDS[kind])) as server:
        buffer = made(f"localhost:{server.port}", **{**KINDS[kind], "alpha": None})
        del state["_checkpoint"]
        with pytest.raises(InvalidArgumentError, match="another kind of sampler"):
            buffer.load_state_dict(state)


def test_a_state_of_other_sequences_is_refused(refused, made):
    sequences = made(sequence_length=3)
    sequences.extend(episodes([4]))
    state = sequences.state_dict()
    refused(lambda it: it.load_state_dict(state), "sequence_length=None must be .* is 3")
    with pytest.raises(InvalidArgumentError, match="sequence_length=2 must be that of state_dict"):
        made(sequence_length=2).load_state_dict(state)


def test_transforms_that_do_not_fit_leave_the_buffer_as_it_was(made):
    def norm(scale):
        return ObservationNorm(loc=0.0, scale=scale, in_keys=["observation"])

    saved = made(batch_size=4, transform=Compose(norm(2.0), norm(3.0)))
    saved.extend(steps(0, 3))
    buffer = made(batch_size=4, transform=Compose(norm(5.0), DoubleToFloat(["a"])))
    buffer.extend(steps(100, 7))
    before = contents(buffer), copy.deepcopy(buffer.transform.state_dict())
    with pytest.raises(InvalidArgumentError, match="does not fit the transforms"):
        buffer.load_state_dict(saved.state_dict())
    assert contents(buffer) == before[0]
    assert str(buffer.transform.state_dict()) == str(before[1])
    other = made(transform=Compose(norm(5.0), norm(7.0)))
    other.load_state_dict(saved.state_dict())
    assert str(other.transform.state_dict()) == str(saved.transform.state_dict())


# ---- Effects of loading --------------------------------------------------------------------------


def test_the_exponent_is_that_of_the_state(made, tmp_path):
    saved = made(alpha=0.5, batch_size=4)
    saved.extend(steps(0, 3))
    elsewhere = pickle.loads(pickle.dumps(saved))
    elsewhere.sampler.alpha = 0.25
    saved.dumps(tmp_path)
    state = saved.state_dict()
    assert state["alpha"] == 0.25
    for load in (lambda it: it.load_state_dict(state), lambda it: it.loads(tmp_path)):
        buffer = made(alpha=0.75)
        load(buffer)
        options = buffer._access.info().sampler_options
        assert options.prioritized.priority_exponent == 0.25
        assert buffer.alpha == buffer.sampler.alpha == 0.25
        # And of what is loaded then.
        load(buffer)
        assert buffer._access.info().sampler_options.prioritized.priority_exponent == 0.25
    elsewhere.close()


def test_sequences_do_not_go_on_across_a_load(made):
    buffer = made(sequence_length=3, batch_size=3)
    data = episodes([9])
    buffer.extend(data[:2])
    state = buffer.state_dict()
    buffer.extend(data[2:4])
    buffer.load_state_dict(state)
    buffer.extend(data[4:7])
    assert [it["step"].tolist() for it in buffer.storage] == [[4, 5, 6]]
    buffer.empty()
    buffer.extend(data[7:])
    assert len(buffer) == 0


@pytest.mark.parametrize("sequence_length", [None, 2])
def test_forked_copies_learn_that_other_items_were_loaded(made, sequence_length):
    context = multiprocessing.get_context("fork")
    buffer = made(batch_size=4, sequence_length=sequence_length)
    buffer.extend(episodes([5]))
    state = buffer.state_dict()
    pickled = pickle.loads(pickle.dumps(buffer))
    for _ in range(2):
        pipes, writers = [], []
        for _ in range(2):
            here, there = context.Pipe()
            pipes.append(here)
            writers.append(context.Process(target=write_until_refused, args=(buffer, there)))
            writers[-1].start()
        for pipe in pipes:
            assert pipe.poll(60)
            assert pipe.recv() == "writes"
        buffer.load_state_dict(state)
        for pipe, writer in zip(pipes, writers, strict=True):
            assert pipe.poll(60)
            text = f"load_state_dict or loads in process {os.getpid()} has replaced the items"
            assert text in pipe.recv()
            writer.join(2 * DEADLINE_S)
            assert writer.exitcode == 0
        assert pickled.sample().batch_size == torch.Size([4])
    pickled.close()


def test_a_checkpoint_is_not_left_on_the_disk(made):
    buffer = made(batch_size=4)
    buffer.extend(steps(0, 6))
    state = buffer.state_dict()
    for _ in range(3):
        buffer.load_state_dict(state)
    assert len(list(pathlib.Path(buffer._access.own._root).iterdir())) == 1
