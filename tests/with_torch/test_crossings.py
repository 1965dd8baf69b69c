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


WINDOW = reverb.Window(3, before=1, pad="both")


@pytest.fixture
def episodes(start, table):
    """A table with two items of steps, each of which tells its place."""
    signature = {"x": reverb.specs.TensorSpec([None], np.int64)}
    client = start(table(signature=signature)).localhost_client()
    for length in (4, 9):
        client.insert_sequence({"x": np.arange(length)}, {"t": 1.0})
    return client


def check_windows(x, info):
    """Compares rows with slices; padding repeats the first or the last step."""
    start, count, mask = (info[it] for it in ("window_start", "num_windows", "window_mask"))
    assert (start.dtype, count.dtype, mask.dtype) == (torch.int32, torch.int32, torch.bool)
    assert {it.device.type for it in (start, count, mask)} == {"cpu"}
    places = start.reshape(8, -1)[:, :1] + torch.arange(4)
    length = count.reshape(8, -1)[:, :1]  # Every step is an anchor.
    assert torch.equal(mask, (places >= 0) & (places < length))
    assert torch.equal(x, places.clamp(min=0).minimum(length - 1).long())


@pytest.mark.parametrize(
    "cross", list((CROSSINGS | libraries()).values()), ids=CROSSINGS | libraries()
)
def test_the_fields_of_windows(episodes, cross):
    with Loader(episodes, "t", 8, window=WINDOW) as loader:
        batch = cross(next(loader))
    assert (type(batch), type(batch.info)) == (reverb.ReplayBatch, reverb.BatchInfo)
    check_windows(batch.data["x"], batch.info._asdict())
    weights = reverb.importance_weights(batch, 1.0, "batch")
    counts = batch.num_windows.numpy()
    np.testing.assert_allclose(weights, counts / counts.max(), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("options", [{}, {"collate_fn": as_is}], ids=["default", "as_is"])
def test_the_fields_of_windows_through_a_data_loader(episodes, num_workers, options):
    dataset = SampleDataset(episodes, "t", 8, window=WINDOW)
    batch = first(DataLoader(dataset, batch_size=None, num_workers=num_workers, **options))
    check_windows(batch.data["x"], batch.info._asdict())


def test_the_fields_of_windows_in_pinned_memory(episodes, monkeypatch):
    """PyTorch rebuilds the containers; what it does with a tensor needs a GPU."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *device: self.clone())
    with Loader(episodes, "t", 8, window=WINDOW) as loader:
        batch = torch.utils.data._utils.pin_memory.pin_memory(next(loader))
    assert (type(batch), type(batch.info)) == (reverb.ReplayBatch, reverb.BatchInfo)
    check_windows(batch.data["x"], batch.info._asdict())


@pytest.mark.parametrize("batch_dims", [1, 2])
def test_a_tensordict_of_windows(episodes, batch_dims):
    options = {"output": "tensordict", "batch_dims": batch_dims}
    with Loader(episodes, "t", 8, window=WINDOW, **options) as loader:
        batch = next(loader)
    assert batch.batch_size == batch["reverb"].batch_size == (8, 4)[:batch_dims]
    check_windows(batch["x"], batch["reverb"])
    weights = reverb.importance_weights(batch, 1.0, "batch")
    counts = batch["reverb", "num_windows"].numpy()
    assert counts.shape == tuple(batch.batch_size)
    np.testing.assert_allclose(weights, counts / counts.max(), rtol=1e-6)
    flat = batch.reshape(-1)
    assert len(flat["reverb", "window_mask"]) == flat.batch_size[0]


def test_spans_of_a_window(episodes):
    window = reverb.Window(3, before=1, spans={"x": (0, 1)})
    for output in ("nest", "tensordict"):
        with Loader(episodes, "t", 8, window=window, output=output) as loader:
            batch = next(loader)
        x, info = (batch["x"], batch["reverb"]) if output == "tensordict" else batch[::-1]
        x = x if output == "tensordict" else x["x"]
        fields = info if output == "tensordict" else info._asdict()
        assert torch.equal(x[:, 0], fields["window_start"] + 1)
        assert fields["window_mask"].shape == (8, 4)
    with pytest.raises(InvalidArgumentError, match=r"batch_dims must be 1 with window\.spans"):
        Loader(episodes, "t", 8, window=window, output="tensordict", batch_dims=2)


def test_windows_on_another_device(episodes):
    """Only the data is moved, as the info says which items it is of."""
    with Loader(episodes, "t", 8, window=WINDOW, device="meta") as loader:
        batch = next(loader)
    assert batch.data["x"].device.type == "meta"
    assert {it.device.type for it in batch.info[8:]} == {"cpu"}


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
