# SPDX-License-Identifier: Apache-2.0
"""Batches as tensors: what they are, where they go, and what goes wrong."""

import contextlib
import gc
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from tensordict import TensorDict

import reverb
from reverb.adapters.torch import Loader, SampleDataset
from reverb.adapters.torch.pinned_ring import PinnedRing
from reverb.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    TableNotFoundError,
    UnavailableError,
)
from support.dtypes import FLOATS

SIGNATURE = {"x": np.zeros([1, 3], np.float32), "y": np.zeros([1], np.int64)}


def fill(client, count, name="t"):
    values = np.arange(count)
    client.insert_batch({"x": np.float32(values)[:, None].repeat(3, 1), "y": values}, {name: 1.0})


@pytest.fixture
def client(serve, table):
    client = serve(table(signature=SIGNATURE))
    fill(client, 100)
    return client


def test_tensors_are_the_memory_of_the_batch(client):
    with Loader(client, "t", 32) as loader:
        for _ in range(4):
            info, data = next(loader)
            assert data["x"].shape == (32, 1, 3)
            assert data["x"].dtype == torch.float32
            assert torch.equal(data["x"][..., 0], data["y"].float())
            assert info.key.dtype == torch.int64
            assert info.probability.dtype == info.priority.dtype == torch.float64
            assert (info.table_size.dtype, info.times_sampled.dtype) == (torch.int64, torch.int32)
        assert loader.stats().num_returned == 4


def test_items_of_one_step_have_no_dimension_of_steps(client):
    with Loader(client, "t", 32, squeeze=True) as loader:
        data = next(loader).data
    assert data["x"].shape == (32, 3)
    assert torch.equal(data["x"][:, 0], data["y"].float())


def test_a_batch_above_its_limit_is_an_error(client):
    with Loader(client, "t", 32, max_batch_bytes=32 * 20) as loader:
        next(loader)
    too_much = Loader(client, "t", 32, max_batch_bytes=32 * 20 - 1)
    with too_much, pytest.raises(ResourceExhaustedError, match="takes 640 bytes, more than"):
        next(too_much)


def test_keys_are_the_bits_of_the_keys(client):
    known = {sample.info.key for sample in client.scan("t")}
    with Loader(client, "t", 64) as loader:
        keys = next(loader).info.key.numpy()
    assert (keys < 0).any()
    assert set(keys.view(np.uint64).tolist()) <= known


def test_priorities_go_back_as_tensors(client):
    with Loader(client, "t", 16) as loader:
        keys = next(loader).info.key
        priorities = torch.linspace(1, 2, 16, requires_grad=True)
        loader.update_priorities(keys, priorities)
        loader.flush()
        found = {sample.info.key: sample.info.priority for sample in client.scan("t")}
        wanted = dict(zip(keys.numpy().view(np.uint64).tolist(), priorities.tolist(), strict=True))
        assert all(found[key] == pytest.approx(value) for key, value in wanted.items())
        with pytest.raises(InvalidArgumentError, match=r"priorities must have shape \[16\]"):
            loader.update_priorities(keys, torch.ones(3))


DTYPES = [
    np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64,
    np.float16, np.float32, np.float64, np.complex64, np.complex128,
    *(getattr(ml_dtypes, name) for name in FLOATS),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda it: np.dtype(it).name)
def test_every_dtype_that_both_have(serve, table, dtype):
    client = serve(table())
    array = np.arange(6).reshape(2, 3).astype(dtype)
    client.insert([array], {"t": 1.0})
    with Loader(client, "t", 2) as loader:
        (tensor,) = next(loader).data
    assert str(tensor.dtype) == f"torch.{np.dtype(dtype).name}"
    assert tensor.shape == (2, 1, 2, 3)
    bits = tensor.view(torch.uint8) if tensor.dtype != torch.bool else tensor
    assert bits[0, 0].numpy().tobytes() == array.tobytes()


def test_tensordicts(client):
    with Loader(client, "t", 8, output="tensordict") as loader:
        batch = next(loader)
    assert isinstance(batch, TensorDict)
    assert (batch.batch_size, batch["x"].shape) == ((8,), (8, 1, 3))
    assert batch["reverb", "key"].dtype == torch.int64
    with Loader(client, "t", 8, output="tensordict", batch_dims=2) as loader:
        batch = next(loader)
    assert batch.batch_size == (8, 1)
    assert batch["reverb", "priority"].tolist() == [[1.0]] * 8


def test_a_transform_gets_tensors_in_the_background(client):
    with Loader(client, "t", 8, transform=lambda sample: sample.data["x"].sum()) as loader:
        assert isinstance(next(loader), torch.Tensor)


# One of some twenty workers that were spawned is aborted by PyTorch 2.15 when it ends ("terminate
# called without an active exception"), also with a dataset of zeros and without this package.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("method", "num_workers"),
    # Workers that are not forked import PyTorch for seconds each.
    [(None, 0), ("fork", 2), ("forkserver", 1), ("spawn", 1)],
)
def test_a_data_loader_with_workers(start, table, method, num_workers):
    client = start(table()).localhost_client()
    fill(client, 100)
    dataset = SampleDataset(client, "t", 16)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=method
    )
    batches = iter(loader)
    for _ in range(6):
        sample = next(batches)
        assert torch.equal(sample.data[0][..., 0], sample.data[1].float())
    with contextlib.suppress(RuntimeError):
        del batches
        gc.collect()


class FakeCuda:
    """The part of `torch.cuda` that a ring needs; waiting for an event reaches it."""

    def __init__(self):
        self.log = []

    class Event:
        def record(self, stream):
            stream.log.append("copied")
            self.stream = stream

        def synchronize(self):
            self.stream.log.append("waited")

    def Stream(self, device):
        self.log_of = self
        return self

    def stream(self, stream):
        import contextlib

        return contextlib.nullcontext()


def test_pinned_memory_is_used_in_turn_and_only_after_its_copy():
    cuda, made = FakeCuda(), []

    def allocate(size, *, dtype, pin_memory):
        assert pin_memory
        made.append(size)
        return torch.empty(size, dtype=dtype)

    ring = PinnedRing("cpu", 2, pin_memory=True, cuda=cuda, allocate=allocate)
    first = [np.arange(12, dtype=np.float32).reshape(4, 3)]
    for _ in range(2):
        assert ring.out() is None
        data, event = ring.move(first)
        assert torch.equal(data[0], torch.from_numpy(first[0]))
        assert event is not None
    assert made == [48, 48]
    assert cuda.log == ["copied", "copied"]
    (place,) = ring.out()
    # The memory of the first batch is free when its copy is complete.
    assert cuda.log == ["copied", "copied", "waited"]
    place[:] = 7
    ring.move([place])
    (other,) = ring.out()
    assert not np.may_share_memory(place, other)
    # A short batch, and one of another shape.
    short, _ = ring.move([np.ones((2, 3), np.float32)])
    assert short[0].shape == (2, 3)
    ring.out()
    wide, _ = ring.move([np.ones((4, 5), np.float32)])
    assert wide[0].shape == (4, 5)
    assert made == [48, 48]


def test_memory_that_cannot_be_pinned_is_told_once(caplog):
    def allocate(size, **options):
        raise RuntimeError("cudaHostAlloc: out of memory")

    ring = PinnedRing("cpu", 2, pin_memory=True, cuda=FakeCuda(), allocate=allocate)
    for _ in range(3):
        ring.out()
        data, _ = ring.move([np.ones((2, 3), np.float32)])
        assert data[0].tolist() == [[1.0] * 3] * 2
    warnings = [it for it in caplog.records if "cannot be pinned" in it.message]
    assert len(warnings) == 1


def test_errors_come_out_of_next(start, connect, table):
    server = start(table())
    client = connect(server, connect_timeout_s=0.5)
    with Loader(client, "u", 2) as loader, pytest.raises(TableNotFoundError, match="table u at"):
        next(loader)
    fill(client, 10)
    with Loader(client, "t", 2) as loader:
        next(loader)
        server.stop()
        with pytest.raises(UnavailableError, match=f"table t: .* at {client.server_address}"):
            list(loader)
    assert list(loader) == []


def test_wrong_arguments(client):
    for options, text in [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"output": "dict"}, "output must be 'nest' or 'tensordict', got 'dict'"),
        ({"batch_dims": 2}, "batch_dims must be 1, or 2 with output='tensordict'"),
        ({"prefetch": 0}, "prefetch must be at least 1, got 0"),
        ({"ragged": "yes"}, "ragged must be 'error', 'pad' or 'packed', got 'yes'"),
        ({"mix": "row"}, "mix must be 'item' or 'batch', got 'row'"),
        ({"max_batch": 2}, "unexpected keyword argument 'max_batch'"),
        ({"transform": 2}, "transform must be a function, got int"),
    ]:
        for make in (Loader, SampleDataset):
            with pytest.raises((InvalidArgumentError, TypeError), match=text):
                make(client, "t", **({"batch_size": 2} | options))
    with pytest.raises(InvalidArgumentError, match="SampleDataset has no device"):
        SampleDataset(client, "t", 2, device="cuda")


def test_updates_after_close_are_refused(client):
    for takes in (True, False):
        with Loader(client, "t", 16) as loader:
            if takes:
                next(loader)
        with pytest.raises(FailedPreconditionError, match="the loader is closed"):
            loader.update_priorities(torch.zeros(1, dtype=torch.int64), 1.0)


@pytest.mark.parametrize("drop_last", [True, False])
def test_epochs_end_the_loader(start, table, drop_last):
    client = start(table(sampler=reverb.selectors.Shuffle())).localhost_client()
    fill(client, 10)
    with Loader(client, "t", 4, epochs=2, drop_last=drop_last) as loader:
        found = [(len(batch.info.key), set(batch.info.epoch.tolist())) for batch in loader]
    assert [size for size, _ in found] == 2 * ([4, 4] if drop_last else [4, 4, 2])
    assert [epochs for _, epochs in found] == [{0}] * (len(found) // 2) + [{1}] * (len(found) // 2)


# PyTorch ends the second worker while it still starts.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_epochs_are_not_for_several_workers(start, table):
    client = start(table(sampler=reverb.selectors.Shuffle())).localhost_client()
    fill(client, 10)
    dataset = SampleDataset(client, "t", 4, epochs=1)
    one = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)
    assert sum(len(batch.info.key) for batch in one) == 10
    several = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    with pytest.raises(
        InvalidArgumentError, match="num_workers of the DataLoader must be at most 1"
    ):
        list(several)


def test_a_learner_that_is_killed_leaves_the_server_clean(start, table, until):
    server = start(table())
    client = server.localhost_client()
    fill(client, 100)
    program = f"""
import os, signal
from reverb.adapters.torch import Loader
loader = Loader("127.0.0.1:{server.port}", "t", 16)
for i, batch in enumerate(loader):
    loader.update_priorities(batch.info.key, batch.info.priority)
    if i == 50:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=100)
    assert done.returncode == -9
    until(lambda: not client.status().streams)
    assert len(client.sample_batch("t", 16).info.key) == 16
