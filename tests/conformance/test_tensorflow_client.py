# SPDX-License-Identifier: Apache-2.0
"""The peer's TensorFlow ops and datasets against this server."""

import ml_dtypes
import numpy as np
import pytest

import reverb
from support.package_workers import WorkerError

pytestmark = [
    pytest.mark.conformance,
    # The peer's own server shows that the test is right.
    pytest.mark.parametrize("server", ["ours", "peer"]),
]


@pytest.fixture
def caller(worker_of):
    """The process of the peer's client."""
    return worker_of("peer", "client")


def test_insert_and_sample(server, caller, serve):
    address = serve(server, {"max_times_sampled": 1}, {"name": "other"})
    caller.call(
        "tf_insert",
        address=address,
        values=[1, 2],
        tables=["table", "other"],
        priorities=[1.0, 2.0],
    )
    samples = caller.call("tf_sample", address=address, count=2)
    assert samples == [[[1.0, -1.0], [1], ["value 1"]], [[2.0, -2.0], [2], ["value 2"]]]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4", "uint4"])
def test_types_that_numpy_lacks(name, server, caller, serve):
    address = serve(server)
    client = reverb.Client(address)
    dtype = np.dtype(getattr(ml_dtypes, name))
    # All bytes there are, as both halves of a wider number.
    first = np.arange(256, dtype=np.uint8).repeat(dtype.itemsize).view(dtype)
    second = np.arange(256 * dtype.itemsize).astype(np.uint8).view(dtype)

    with client.trajectory_writer(2) as writer:
        writer.append([first])
        writer.append([second])
        writer.create_item("table", 1.0, [writer.history[0][:]])
    bits = [name, first.tobytes().hex()], [name, (first.tobytes() + second.tobytes()).hex()]
    assert caller.call("tf_sample_bits", address=address, dtype=name, length=256) == [*bits]

    client.reset("table")
    caller.call("tf_insert_bits", address=address, dtype=name, bits=second.tobytes().hex())
    (sample,) = client.sample("table", emit_timesteps=False)
    (batch,) = client.sample_batch("table", 2).data
    assert (sample.data[0].dtype, batch.dtype) == (dtype, dtype)
    assert 2 * sample.data[0].tobytes() == batch.tobytes() == 2 * second.tobytes()


def test_update_priorities(server, caller, serve):
    address = serve(server, {"sampler": "MaxHeap"})
    caller.call("insert", address=address, values=[0, 1], priorities={"table": 1.0})
    (first,) = caller.call("read", address=address, count=1, how="sample")
    key = first["info"]["key"]
    caller.call(
        "tf_update_priorities", address=address, table="table", keys=[key], priorities=[0.25]
    )
    (second,) = caller.call("read", address=address, count=1, how="sample")
    assert second["info"]["key"] != key
    with pytest.raises(WorkerError) as caught:
        caller.call("tf_update_priorities", address=address, table="no", keys=[1], priorities=[1.0])
    assert "NotFoundError" in caught.value.types


def test_a_finite_timeout_ends_the_dataset(server, caller, serve):
    address = serve(server, {"max_times_sampled": 1})
    caller.call("insert", address=address, values=[1, 2, 3], priorities={"table": 1.0})
    caller.call(
        "open_dataset",
        address=address,
        max_in_flight_samples_per_worker=1,
        rate_limiter_timeout_ms=400,
    )
    assert caller.call("take") == [1, 2, 3]


def test_several_workers_share_a_queue(server, caller, serve):
    address = serve(server, {"max_times_sampled": 1})
    caller.call("insert", address=address, values=list(range(40)), priorities={"table": 1.0})
    caller.call(
        "open_dataset",
        address=address,
        max_in_flight_samples_per_worker=3,
        num_workers_per_iterator=4,
        max_samples_per_stream=5,
        max_samples=40,
    )
    assert sorted(caller.call("take")) == list(range(40))


def test_dataset_checks_itself_against_the_signature(server, caller, serve):
    signature = {"list": [{"spec": [[None], "float32", None]}]}
    address = serve(server, {"signature": signature})
    with pytest.raises(WorkerError) as caught:
        caller.call("open_dataset", address=address, max_in_flight_samples_per_worker=1)
    assert "InvalidArgumentError" in caught.value.types


def test_unknown_table_ends_the_dataset_with_not_found(server, caller, serve):
    address = serve(server, {"name": "other"})
    caller.call("open_dataset", address=address, max_in_flight_samples_per_worker=1)
    with pytest.raises(WorkerError) as caught:
        caller.call("take", count=1)
    assert "NotFoundError" in caught.value.types
