# SPDX-License-Identifier: Apache-2.0
"""Fields are matched by their names, and only sequences lose a time axis."""

import collections

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import reverb
from reverb import testing
from reverb.adapters.torchrl import tables
from reverb.errors import InvalidArgumentError, SignatureMismatchError
from reverb.specs import TensorSpec

Step = collections.namedtuple("Step", ["obs", "next_obs"])
FLOATS = TensorSpec([None], np.float32)


def table_of(signature, sampler=None):
    return testing.table(
        "replay", sampler=sampler or reverb.selectors.Uniform(), max_size=100, signature=signature
    )


@pytest.fixture
def serve():
    """Starts a server; returns its address and a client."""
    servers = []

    def start(signature, *others):
        servers.append(reverb.Server([table_of(signature), *others]))
        return f"localhost:{servers[-1].port}", servers[-1].localhost_client()

    yield start
    for server in servers:
        server.stop()


# ---- Names ---------------------------------------------------------------------------------------


def data_of(fields):
    return TensorDict({path: torch.full((3,), float(it)) for path, it in fields.items()}, [3])


@pytest.mark.parametrize("tells_fields", [False, True])
@pytest.mark.parametrize("options", [{}, {"sequence_length": 1}], ids=["rows", "sequences"])
@pytest.mark.parametrize(
    ("signature", "root"),
    [
        ({"next_obs": FLOATS, "obs": FLOATS}, ()),
        (Step(FLOATS, FLOATS), ()),
        ({"a": {"b": Step(FLOATS, FLOATS)}}, ("a", "b")),
    ],
    ids=["dict", "named tuple", "both"],
)
def test_columns_are_put_in_the_signatures_order(
    made, serve, signature, root, options, tells_fields
):
    address, client = serve(signature, *tables("replay")[1:] * tells_fields)
    if options:
        options = {**options, "traj_key": (*root, "obs")}
    buffer = made(address, batch_size=2, **options)
    buffer.extend(data_of({(*root, "next_obs"): 2, (*root, "obs"): 1}))
    unpacked = client.sample_batch("replay", 1, unpack_as_table_signature=True).data
    for name in root:
        unpacked = unpacked[name]
    unpacked = unpacked if isinstance(unpacked, dict) else unpacked._asdict()
    assert {name: it.item() for name, it in unpacked.items()} == {"obs": 1, "next_obs": 2}
    for reader in (buffer, made(address, batch_size=2, **options)):
        sample = reader.sample()
        assert sample[(*root, "obs")].tolist() == [1, 1]
        assert sample[(*root, "next_obs")].tolist() == [2, 2]


@pytest.mark.parametrize("tells_fields", [False, True])
@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            ["state", "next_obs"],
            r"its items, \['next_obs', 'obs'\], got \['next_obs', 'state'\]: \['obs'\] are missing",
        ),
        (["state", "state_next"], r"\['next_obs', 'obs'\], got \['state', 'state_next'\]"),
        (["obs"], r"got \['obs'\]: \['next_obs'\] are missing, \[\] are new"),
    ],
)
def test_other_names_are_refused_with_both_lists(made, serve, names, text, tells_fields):
    address, _ = serve(Step(FLOATS, FLOATS), *tables("replay")[1:] * tells_fields)
    buffer = made(address, batch_size=2)
    for _ in range(2):
        with pytest.raises(SignatureMismatchError, match=text):
            buffer.extend(data_of({(name,): 1 for name in names}))
    buffer.extend(data_of({("next_obs",): 2, ("obs",): 1}))
    assert len(buffer) == 3


def test_fields_that_the_server_refuses_are_not_kept(made, serve):
    address, _ = serve({"a": FLOATS}, *tables("replay")[1:])
    buffer = made(address, batch_size=2)
    with pytest.raises(SignatureMismatchError, match="a "):
        buffer.extend(TensorDict({"a": torch.zeros(3, dtype=torch.int64)}, [3]))
    buffer.extend(data_of({("a",): 1}))
    assert made(address, batch_size=2).sample()["a"].tolist() == [1, 1]


# ---- Names of dimensions -------------------------------------------------------------------------


def trajectories(names, dtype=torch.float32):
    data = {"a": torch.zeros(2, 3, dtype=dtype), "inner": {"b": torch.ones(2, 3, 1)}}
    return TensorDict(data, [2, 3], names=names)


def test_names_of_dimensions_come_back(made):
    with reverb.Server(tables("replay")) as server:
        buffers = [made(f"localhost:{server.port}", batch_size=4) for _ in range(2)]
        buffers[0].extend(trajectories(["batch", "time"]))
        buffers[1].extend(trajectories([None, "time"]))
        for buffer in buffers:
            sample = buffer.sample()
            assert sample.names == sample["inner"].names == [None, "time"]
            assert buffer[:].names == [None, "time"]
            assert next(buffer.scan()).names == ["time"]
        assert buffers[0].sample().shape == torch.Size([4, 3])


@pytest.mark.parametrize("names", [None, ["batch", "steps"]])
def test_there_are_none_if_writers_differ(made, names):
    with reverb.Server(tables("replay")) as server:
        buffers = [made(f"localhost:{server.port}", batch_size=4) for _ in range(3)]
        buffers[0].extend(trajectories(["batch", "time"]))
        assert buffers[2].sample().names == [None, "time"]
        buffers[1].extend(trajectories(names))
        buffers[0].extend(trajectories(["batch", "time"]))
        for buffer in buffers:
            assert buffer.sample().names == [None, None]


def test_rows_of_other_batch_dimensions_are_refused(made):
    buffer = made(batch_size=2)
    buffer.extend(trajectories(None))
    text = "have 1 dimensions in the batch size of their own, got 0"
    with pytest.raises(SignatureMismatchError, match=text):
        buffer.extend(TensorDict(trajectories(None).to_dict(), [2]))


# ---- Time ----------------------------------------------------------------------------------------

SHAPES = {"image": (1, 4, 4), "action": (1,), "reward": (), "three": (3,)}


def written(client, columns, count=4):
    """Items of steps whose values tell which they are; `columns` chooses those of an item."""
    with client.trajectory_writer(4) as writer:
        for at in range(count + 3):
            writer.append({name: np.full(it, at, np.float32) for name, it in SHAPES.items()})
            if at >= 3:
                writer.create_item("replay", 1.0, columns(writer.history))


@pytest.mark.parametrize("reads_first", [False, True], ids=["samples", "reads"])
def test_single_steps_keep_their_axes(made, serve, reads_first):
    signature = {name: TensorSpec(it, np.float32) for name, it in SHAPES.items()}
    address, client = serve(signature)
    written(client, lambda history: {name: history[name][-1] for name in SHAPES})
    buffer = made(address, batch_size=5)
    found = [(buffer[:], 4)] if reads_first else []
    found += [(buffer.sample(), 5), (buffer[:], 4)]
    for data, count in found:
        assert data.batch_size == torch.Size([count])
        for name, shape in SHAPES.items():
            assert data[name].shape == torch.Size([count, *shape])
    assert next(buffer.scan())["action"].shape == torch.Size([1])


def test_columns_of_one_step_lose_the_time(made, serve):
    signature = {name: TensorSpec([1, *it], np.float32) for name, it in SHAPES.items()}
    address, client = serve(signature)
    written(client, lambda history: {name: history[name][-1:] for name in SHAPES})
    buffer = made(address, batch_size=5)
    for found in (buffer.sample(), buffer[:]):
        for name, shape in SHAPES.items():
            assert found[name].shape[1:] == torch.Size(shape)


def test_what_a_sequence_has_once_all_its_steps_have(made, serve):
    signature = {
        name: TensorSpec(it if name == "action" else [2, *it], np.float32)
        for name, it in SHAPES.items()
    }
    address, client = serve(signature)

    def columns(history):
        return {name: history[name][-1 if name == "action" else slice(-2, None)] for name in SHAPES}

    written(client, columns)
    buffer = made(address, batch_size=6, sequence_length=2)
    sample = buffer.sample()
    assert sample.batch_size == torch.Size([6])
    for found in (sample.reshape(3, 2), buffer[:]):
        for name, shape in SHAPES.items():
            assert found[name].shape[2:] == torch.Size(shape)
        assert (found["reward"][:, 0] + 1 == found["reward"][:, 1]).all()
        assert (found["action"][..., 0] == found["reward"][:, 1:]).all()
    with pytest.raises(InvalidArgumentError, match=r"sequence_length=3 must be .* have 2 in field"):
        made(address, batch_size=6, sequence_length=3).sample()


def test_items_of_different_lengths_are_refused(made, serve):
    address, client = serve({"reward": FLOATS})
    for length in (1, 2):
        with client.trajectory_writer(2) as writer:
            for _ in range(2):
                writer.append({"reward": np.float32(0)})
            writer.create_item("replay", 1.0, {"reward": writer.history["reward"][-length:]})
    buffer = made(address, batch_size=64)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError):
            buffer.sample()
