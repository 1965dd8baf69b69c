# SPDX-License-Identifier: Apache-2.0
"""Batches of tensors whose containers another library has rebuilt."""

import contextlib
import gc

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

import reverb
from reverb.adapters.torch import Loader, SampleDataset, as_is
from reverb.errors import InvalidArgumentError

DTYPES = [
    torch.int64, torch.float64, torch.int64, torch.float64, torch.int32, torch.float64, torch.int64
]  # fmt: skip


@pytest.fixture
def client(start, table):
    """A table with an item that is hardly ever sampled, so that it is in no batch."""
    client = start(table(signature={"x": np.zeros([1], np.float32)})).localhost_client()
    rows = np.arange(100, dtype=np.float32)
    client.insert_batch({"x": rows}, {"t": np.r_[1e-6, np.ones(99)]})
    return client


def check(batch):
    assert (type(batch), type(batch.info)) == (reverb.ReplayBatch, reverb.BatchInfo)
    assert [it.dtype for it in batch.info[:7]] == DTYPES
    assert [tuple(it.shape) for it in batch.info[:7]] == [(8,)] * 7
    assert len(batch.lengths) == 0
    info, _ = batch
    for it in (batch, info):
        assert reverb.importance_weights(it, 1.0).max() < 1e-5


def as_loader(client):
    with Loader(client, "t", 8) as loader:
        return next(loader)


def first(loader):
    """The first batch of a `DataLoader`, whose workers PyTorch sometimes aborts at their end."""
    batches = iter(loader)
    try:
        return next(batches)
    finally:
        with contextlib.suppress(RuntimeError):
            del batches
            gc.collect()


CROSSINGS = {
    "as it is": lambda batch: batch,
    "pytree": lambda batch: pytree.tree_map(torch.clone, batch),
    "unflattened": lambda batch: pytree.tree_unflatten(*pytree.tree_flatten(batch)),
    "converted": torch.utils.data.default_convert,
}


def libraries():
    """Others that move batches to a device, as far as they are installed."""
    found = {}
    for module, name in [
        ("accelerate.utils", "send_to_device"),
        ("lightning.fabric.utilities.apply_func", "move_data_to_device"),
    ]:
        try:
            function = getattr(__import__(module, fromlist=[name]), name)
        except ImportError:
            continue
        found[name] = lambda batch, function=function: function(batch, torch.device("cpu"))
    return found


@pytest.mark.parametrize(
    "cross", list((CROSSINGS | libraries()).values()), ids=CROSSINGS | libraries()
)
def test_the_fields_of_a_batch(client, cross):
    check(cross(as_loader(client)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("options", [{}, {"collate_fn": as_is}], ids=["default", "as_is"])
def test_the_fields_through_a_data_loader(client, num_workers, options):
    dataset = SampleDataset(client, "t", 8)
    check(first(DataLoader(dataset, batch_size=None, num_workers=num_workers, **options)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_tensordict_through_a_data_loader(client, num_workers):
    dataset = SampleDataset(client, "t", 8, output="tensordict")
    options = {"batch_size": None, "num_workers": num_workers}
    batch = first(DataLoader(dataset, collate_fn=as_is, **options))
    assert (batch.batch_size, batch["x"].shape) == ((8,), (8, 1))
    with pytest.raises(InvalidArgumentError, match=r"must be reverb\.adapters\.torch\.as_is"):
        first(DataLoader(dataset, **options))


def test_a_tensordict_has_every_field(client):
    with Loader(client, "t", 8, output="tensordict") as loader:
        batch = next(loader)
    info = batch["reverb"]
    assert set(info.keys()) == set(reverb.BatchInfo._fields[:7])
    assert [info[name].dtype for name in reverb.BatchInfo._fields[:7]] == DTYPES
    for it in (batch, info):
        assert reverb.importance_weights(it, 1.0).max() < 1e-5


@pytest.mark.parametrize("output", ["nest", "tensordict"])
def test_lengths_are_tensors(serve, table, output):
    client = serve(table())
    with client.trajectory_writer(3) as writer:
        for length in (1, 3, 2):
            for _ in range(length):
                writer.append({"x": np.float32(length), "last": length})
            columns = {"last": writer.history["last"][-1], "x": writer.history["x"][:]}
            writer.create_item("t", 1.0, columns)
            writer.end_episode()
    with Loader(client, "t", 6, ragged="pad", output=output) as loader:
        batch = next(loader)
    if output == "nest":
        (last, _), (of_last, of_x) = batch.data, batch.lengths
    else:
        last = batch["0"]
        of_last, of_x = batch["reverb", "lengths", "0"], batch["reverb", "lengths", "1"]
    assert (of_x.dtype, of_last.dtype) == (torch.int32, torch.int32)
    assert torch.equal(of_x.long(), last)
    assert of_last.tolist() == [1] * 6


@pytest.mark.parametrize("output", ["nest", "tensordict"])
def test_texts_stay_beside_numbers(serve, table, output):
    client = serve(table(signature={"text": np.zeros([1], object), "x": np.zeros([1], np.float32)}))
    for number in range(4):
        client.insert({"text": f"text {number}", "x": np.float32(number)}, {"t": 1.0})
    with Loader(client, "t", 4, distinct=True, output=output) as loader:
        batch = next(loader)
    data = batch.data if output == "nest" else batch
    texts = np.asarray(data["text"]).ravel().tolist()
    assert texts == [f"text {number:.0f}".encode() for number in data["x"].ravel().tolist()]


def test_columns_that_were_left_out_of_a_list(serve, table):
    signature = [np.zeros([1], np.float32), np.zeros([1], np.int64)]
    client = serve(table(signature=signature))
    client.insert_batch([np.arange(4, dtype=np.float32), np.arange(4)], {"t": 1.0})
    with Loader(client, "t", 4, columns=[1]) as loader:
        left_out, numbers = next(loader).data
    assert left_out is None
    assert numbers.dtype == torch.int64
    with Loader(client, "t", 4, columns=[1], output="tensordict") as loader:
        assert set(next(loader).keys()) == {"1", "reverb"}
