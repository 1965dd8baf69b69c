# SPDX-License-Identifier: Apache-2.0
"""Priorities as tensors of every dtype, at their value, with `ml_dtypes` and without."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import reverb
from reverb._checks.number_arrays import as_numbers
from reverb.adapters.torch import Loader

NAMES = [
    "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "uint8", "int8", "uint16", "int16",
    "uint32", "int32", "uint64", "int64",
]  # fmt: skip
DTYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]


@pytest.fixture
def client(serve, table):
    return serve(table())


def found(client):
    return sorted(sample.info.priority for sample in client.scan("t"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
class TestEveryDtype:
    def test_inserts(self, client, dtype):
        four = torch.tensor([1.0, 2.0, 4.0, 8.0]).to(dtype)
        client.insert_batch([np.zeros(4)], {"t": four})
        client.insert_batch([np.zeros(1)], {"t": torch.tensor(16.0).to(dtype)})
        client.insert([0.0], {"t": torch.tensor(32.0).to(dtype)})
        client.insert_batch([np.zeros(1)], {"t": list(torch.tensor([64.0]).to(dtype))})
        assert found(client) == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]

    def test_writers(self, client, dtype):
        two = torch.tensor([1.0, 2.0]).to(dtype)
        with client.trajectory_writer(1) as writer:
            writer.append([0.0])
            writer.create_item("t", two[1], [writer.history[0][:]], removal_priority=two[0])
        with client.batched_trajectory_writer(2, 1) as writer:
            writer.append([np.zeros(2)])
            writer.create_items("t", two, [writer.history[0][:]], removal_priorities=two)
        with client.writer(1) as writer:
            writer.append([0.0])
            writer.create_item("t", 1, two[1])
        with client.sequence_writer("t", 1, 2) as writer:
            writer.append([np.zeros(2)], priorities=two, removal_priorities=two)
        assert found(client) == [1.0, 1.0, 2.0, 2.0, 2.0, 2.0]

    def test_updates(self, client, dtype):
        client.insert_batch([np.zeros(8)], {"t": 1.0})
        eight = torch.full((8,), 2.0).to(dtype)
        with Loader(client, "t", 8, distinct=True) as loader:
            keys = next(loader).info.key
            loader.update_priorities(keys, eight)
            loader.flush()
            assert found(client) == [2.0] * 8
            client.update_priorities("t", keys, (2 * eight.double()).to(dtype))
            assert found(client) == [4.0] * 8
            client.mutate_priorities("t", {int(keys.numpy().view(np.uint64)[0]): eight[0]})
            assert found(client) == [2.0] + [4.0] * 7
        with reverb.batches(client, "t", 8, distinct=True) as iterator:
            iterator.update_priorities(next(iterator).info.key, eight)
            iterator.flush()
            assert found(client) == [2.0] * 8

    def test_priorities_of_sequences(self, dtype):
        td = torch.tensor([[1.0, 4.0], [2.0, 2.0]]).to(dtype)
        np.testing.assert_allclose(reverb.sequence_priority(td), [0.9 * 4 + 0.1 * 2.5, 2.0])


def test_gradients_and_strides_do_not_matter():
    values = torch.arange(8, dtype=torch.bfloat16).requires_grad_() * 1
    assert as_numbers("priorities", values[::2]).tolist() == [0.0, 2.0, 4.0, 6.0]


PROGRAM = """
import sys

sys.modules["ml_dtypes"] = None  # As if it were not installed.
import numpy as np
import torch

import reverb
from reverb import testing
from reverb.adapters.torch import Loader, SampleDataset
from reverb._checks.number_arrays import as_numbers

for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
    dtype = getattr(torch, name)
    rows = (torch.arange(12.0).reshape(6, 2) / 4).to(dtype)
    with testing.server([testing.table("t"), testing.table("r")]) as client:
        client.insert_batch([rows], {"t": torch.arange(1.0, 7.0).to(dtype)})
        raw = client.sample_batch("t", 6, distinct=True)
        assert raw.info.priority.tolist() == [1, 2, 3, 4, 5, 6]
        # What is read without the package is raw bytes, and still has its value as a priority.
        client.update_priorities("t", raw.info.key, raw.data[0][:, 0, 1])
        told = [sample.info.priority for sample in client.scan("t")]
        assert told == rows[:, 1].double().tolist(), told
        for output in ("nest", "tensordict"):
            with Loader(client, "t", 6, distinct=True, output=output) as loader:
                batch = next(loader)
            x = batch.data[0] if output == "nest" else batch["0"]
            assert x.dtype == dtype and torch.equal(x[:, 0].double(), rows.double()), x
        assert next(iter(SampleDataset(client, "t", 6))).data[0].dtype == dtype
        with client.trajectory_writer(4) as writer:
            for length in (2, 4):
                for step in range(length):
                    writer.append([rows[step]])
                writer.create_item("r", 1.0, [writer.history[0][:]])
                writer.end_episode()
        for ragged in ("pad", "packed"):
            with Loader(client, "r", 2, distinct=True, ragged=ragged) as loader:
                (x,) = next(loader).data
            assert x.dtype == dtype, x
bits = np.arange(65536).astype(np.uint16)
for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
    own = bits if name == "bfloat16" else bits[:256].astype(np.uint8)
    same = own.view(np.int16) if name == "bfloat16" else own
    raw = own.view(np.dtype(f"V{own.itemsize}", metadata={"reverb_dtype": name}))
    wanted = torch.from_numpy(same).view(getattr(torch, name)).double().numpy()
    assert np.array_equal(as_numbers("x", raw), wanted, equal_nan=True), name
print("as numbers")
"""


def test_without_the_package_of_the_dtypes():
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", PROGRAM],
        timeout=200,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "as numbers\n", done.stderr
