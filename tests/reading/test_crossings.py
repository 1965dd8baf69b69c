# SPDX-License-Identifier: Apache-2.0
"""Batches whose containers another library has rebuilt: every field is still there."""

import copy
import pickle

import numpy as np
import pytest
import tree

import reverb
from reverb import testing

CROSSINGS = {
    "as it is": lambda batch: batch,
    "unpacked": lambda batch: reverb.ReplayBatch(*batch),
    "_replace": lambda batch: batch._replace(data=batch.data)._replace(info=batch.info),
    "_make": lambda batch: type(batch)._make(batch),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "dm-tree": lambda batch: tree.map_structure(lambda leaf: leaf, batch),
    "dm-tree, flat": lambda batch: tree.unflatten_as(batch, tree.flatten(batch)),
}


def make_table():
    return testing.table("t", sampler=reverb.selectors.Prioritized(1.0), max_size=10_000)


def fill(client):
    """One item that is hardly ever sampled, so that it is in no batch."""
    rows = np.arange(100, dtype=np.float32)
    client.insert_batch({"x": rows}, {"t": np.r_[1e-6, np.ones(99)]})


def write_lengths(client):
    with client.trajectory_writer(3) as writer:
        for length in (1, 3, 2):
            for _ in range(length):
                writer.append({"x": np.float32(length), "last": length})
            columns = {"last": writer.history["last"][-1], "x": writer.history["x"][:]}
            writer.create_item("t", 1.0, columns)
            writer.end_episode()


@pytest.mark.parametrize("name", CROSSINGS)
def test_the_fields_of_a_batch(serve, name):
    client = serve(make_table())
    fill(client)
    batch = client.sample_batch("t", 8)
    other = CROSSINGS[name](batch)
    assert (type(other), type(other.info)) == (reverb.ReplayBatch, reverb.BatchInfo)
    for field in reverb.BatchInfo._fields[:7]:
        one, two = getattr(batch.info, field), getattr(other.info, field)
        assert (one.dtype, one.shape) == (two.dtype, (8,))
        np.testing.assert_array_equal(one, two)
    assert other.lengths == ()
    info, _ = other
    for it in (other, info):
        assert reverb.importance_weights(it, 1.0).max() < 1e-5


@pytest.mark.parametrize("name", CROSSINGS)
def test_the_fields_of_windows(serve, name):
    client = serve(make_table())
    client.insert_sequence({"x": np.arange(9.0)}, {"t": 1.0})
    batch = client.sample_batch("t", 8, window=reverb.Window(3, before=1, pad="both"))
    other = CROSSINGS[name](batch)
    assert (type(other), type(other.info)) == (reverb.ReplayBatch, reverb.BatchInfo)
    dtypes = {"window_start": np.int32, "num_windows": np.int32, "window_mask": np.bool_}
    for field, dtype in dtypes.items():
        one, two = getattr(batch, field), getattr(other.info, field)
        assert two.dtype == dtype
        np.testing.assert_array_equal(one, two)
    assert other.window_mask.shape == (8, 4)
    assert (reverb.importance_weights(other, 1.0, "batch") == 1).all()


@pytest.mark.parametrize("name", CROSSINGS)
def test_lengths_of_a_padded_batch(serve, name):
    client = serve(make_table())
    write_lengths(client)
    # So many that the longest item is among them, but for one run in 10^11.
    batch = CROSSINGS[name](client.sample_batch("t", 64, ragged="pad"))
    (last, x), (of_last, of_x) = batch.data, batch.lengths
    assert x.shape[1:] == (3,)
    assert of_x.tolist() == last.tolist()
    assert of_last.tolist() == [1] * 64
    assert {of_x.dtype, of_last.dtype} == {np.dtype(np.int32)}
    tree.assert_same_structure(batch.data, batch.lengths)


def test_lengths_are_nested_like_the_data_of_given_memory(serve):
    client = serve(make_table())
    write_lengths(client)
    out = {"x": np.zeros((4, 3), np.float32), "last": np.zeros(4, np.int64)}
    batch = client.sample_batch("t", 4, ragged="pad", out=out)
    assert batch.data is out
    assert batch.lengths["x"].tolist() == out["last"].tolist()
    assert batch.lengths["last"].tolist() == [1] * 4
