# SPDX-License-Identifier: Apache-2.0
"""Datasets and `TFClient` at a Unix socket."""

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing
from support.certificates import TokensFile


@pytest.fixture(params=["in_process", "remote"])
def address(request, start, tmp_path, monkeypatch):
    """A server with tokens, one of which is in the environment."""
    tokens = TokensFile(tmp_path / "tokens")
    monkeypatch.setenv("REVERB_TOKEN", tokens.add("learner", "sample,insert,update"))
    directory = tmp_path / "a b"
    server = start(
        testing.table(max_times_sampled=0),
        testing.table("signed", max_times_sampled=0, signature=tf.TensorSpec([1], tf.float32)),
        unix_path=directory / "reverb",
        tokens=tokens.path,
        host="127.0.0.1",
    )
    if request.param == "in_process":
        return server.unix_address
    # No client in this process recognises this name of the directory.
    (tmp_path / "link").symlink_to(directory)
    return f"unix:{tmp_path}/link/reverb"


def test_datasets_read_from_it(address):
    reverb.Client(address).insert(np.float32(7), {"table": 1.0, "signed": 1.0})
    shape = tf.TensorShape([1])
    for dataset in (
        reverb.TrajectoryDataset.from_table_signature(address, "signed", 2),
        reverb.TrajectoryDataset(tf.constant(address), "table", tf.float32, shape, 2),
    ):
        assert [float(sample.data[0]) for sample in dataset.take(3)] == [7.0] * 3


def test_ops_call_it(address):
    client = reverb.TFClient(address)
    client.insert([tf.constant(3.0)], tf.constant(["table"]), tf.constant([1.0], tf.float64))
    sample = client.sample("table", [tf.float32])
    assert float(sample.data[0]) == 3.0
    client.update_priorities("table", tf.stack([sample.info.key]), tf.constant([2.0], tf.float64))
    (sample,) = reverb.Client(address).sample("table", emit_timesteps=False)
    assert sample.info.priority == 2.0


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("unix:relative/x/", "has a path that is that of a directory"),
        ("grpcs://unix:/x", "a Unix socket has no TLS"),
    ],
)
def test_a_malformed_address_is_an_error(address, what):
    with pytest.raises(ValueError, match=what):
        reverb.TFClient(address)
    dataset = reverb.TrajectoryDataset(address, "table", tf.float32, tf.TensorShape([1]), 2)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=what):
        next(iter(dataset))
