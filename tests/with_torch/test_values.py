# SPDX-License-Identifier: Apache-2.0
"""Tensors as values, keys and priorities, and ragged batches as nested tensors."""

import numpy as np
import pytest
import torch

import reverb
from reverb.adapters.torch import Loader
from reverb.errors import InvalidArgumentError
from support.dtypes import FLOATS

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.float32, torch.float64, torch.complex64, *(getattr(torch, name) for name in FLOATS),
]  # fmt: skip


@pytest.fixture
def client(serve, table):
    return serve(table())


def read(client, count=1):
    with Loader(client, "t", count) as loader:
        return next(loader).data


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_was_written_is_read_bit_for_bit(client, dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    client.insert([tensor], {"t": 1.0})
    (found,) = read(client)
    assert found.dtype == dtype
    assert torch.equal(found[0, 0].view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_and_strides_do_not_matter(client, dtype):
    tensor = torch.arange(6, dtype=dtype).reshape(2, 3).t()
    client.insert([tensor.requires_grad_()], {"t": 1.0})
    (found,) = read(client)
    assert found[0, 0].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_rows_and_steps(client):
    client.insert_batch([torch.arange(8.0).reshape(4, 2)], {"t": torch.ones(4)})
    with client.trajectory_writer(2) as writer:
        for number in range(2):
            writer.append([torch.full((2,), 10.0 + number)])
        writer.create_item("t", 1.0, [writer.history[0][-1:]])
    assert {sample.data[0][0, 0] for sample in client.scan("t")} == {0.0, 2.0, 4.0, 6.0, 11.0}


def test_packed_batches_are_nested_tensors(client):
    lengths = [1, 3, 2]
    with client.trajectory_writer(3) as writer:
        for number, length in enumerate(lengths):
            for step in range(length):
                writer.append([np.float32(10 * number + step)])
            writer.create_item("t", 1.0, [writer.history[0][-length:]])
            writer.end_episode()
    ragged = client.sample_batch("t", 6, ragged="packed").data[0]
    assert isinstance(ragged, reverb.Ragged)
    nested = ragged.torch_nested()
    assert nested.is_nested
    assert [it.tolist() for it in nested.unbind()] == [it.tolist() for it in ragged.to_list()]
    assert torch.equal(
        torch.from_numpy(ragged.padded(-1.0)), torch.nested.to_padded_tensor(nested, -1.0)
    )


def test_batches_are_written_into_tensors(client):
    client.insert_batch([torch.arange(8.0).reshape(4, 2)], {"t": 1.0})
    place = torch.zeros(16, 1, 2)
    batch = client.sample_batch("t", 16, out=[place.numpy()])
    assert torch.equal(place[:, 0, 1] - place[:, 0, 0], torch.ones(16))
    assert np.array_equal(batch.data[0], place.numpy())


def test_the_error_of_another_device_names_it(client):
    with pytest.raises(InvalidArgumentError, match=r"writers take CPU memory. Call .cpu\(\)"):
        client.insert([torch.zeros(3, device="meta")], {"t": 1.0})


def test_a_loader_makes_nested_tensors(client):
    with client.trajectory_writer(3) as writer:
        for length in [1, 3]:
            for step in range(length):
                writer.append([torch.full((2,), float(step), dtype=torch.bfloat16)])
            writer.create_item("t", 1.0, [writer.history[0][-length:]])
            writer.end_episode()
    with Loader(client, "t", 4, ragged="packed") as loader:
        (column,) = next(loader).data
    assert column.is_nested
    assert column.dtype == torch.bfloat16
    assert {len(item) for item in column.unbind()} <= {1, 3}
    with Loader(client, "t", 4, ragged="pad") as loader:
        batch = next(loader)
    assert batch.data[0].shape[0] == 4
    assert set(batch.lengths[0].tolist()) <= {1, 3}


@pytest.mark.parametrize("output", ["nest", "tensordict"])
def test_packed_texts_stay_arrays(client, output):
    with client.trajectory_writer(2) as writer:
        for step in range(2):
            writer.append({"text": f"text {step}", "x": np.float32(step)})
        steps = {name: writer.history[name][-2:] for name in ("text", "x")}
        writer.create_item("t", 1.0, {**steps, "last": writer.history["text"][-1]})
    with Loader(client, "t", 3, ragged="packed", output=output) as loader:
        batch = next(loader)
    # In the order of the names: last, text, x.
    last, text, x = batch.data if output == "nest" else (batch[name] for name in "012")
    assert last.tolist() == [b"text 1"] * 3
    assert isinstance(text, reverb.Ragged)
    assert [it.tolist() for it in text] == [[b"text 0", b"text 1"]] * 3
    assert x.is_nested


@pytest.mark.parametrize("prefetch", [1, 3])
def test_nested_tensors_of_a_loader_stay_unchanged(client, prefetch):
    lengths = np.random.default_rng(0).integers(1, 40, 60).tolist()
    with client.trajectory_writer(max(lengths)) as writer:
        for number, length in enumerate(lengths):
            for step in range(length):
                writer.append([np.full(16, 100 * number + step, np.float32), number])
            history = writer.history
            writer.create_item("t", 1.0, [history[0][-length:], history[1][-1]])
            writer.end_episode()
    with Loader(client, "t", 16, prefetch=prefetch, ragged="packed") as loader:
        batches = [next(loader).data for _ in range(40)]
    assert len({len(column.values()) for column, _ in batches}) > 10
    for column, numbers in batches:
        items = column.unbind()
        assert [len(item) for item in items] == [lengths[number] for number in numbers]
        for item, number in zip(items, numbers.tolist(), strict=True):
            steps = 100.0 * number + torch.arange(len(item))
            assert torch.equal(item, steps[:, None].expand(-1, 16))
