# SPDX-License-Identifier: Apache-2.0
"""Graphs that the release before windows wrote, with TensorFlow 2.15: they load, and they run.

`older_graphs/make.py` is the program that wrote them.
"""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import reverb.tf_ops  # Graphs need the ops only.
from reverb import testing

FOLDER = pathlib.Path(__file__).parent / "older_graphs"
FILES = ["graph.pb", "dataset.pb", "saved_model/saved_model.pb"]


@pytest.fixture
def client(serve):
    """A client of a server with the items 0 to 9, of three steps and a value each, in order."""
    client = serve(testing.table(max_times_sampled=1))
    with client.trajectory_writer(3) as writer:
        for value in range(10):
            for _ in range(3):
                writer.append({"steps": np.full(2, value, np.float32), "value": np.int64(value)})
            item = {"steps": writer.history["steps"][-3:], "value": writer.history["value"][-1]}
            writer.create_item("table", 1.0, item)
            writer.flush()
    return client


@pytest.mark.parametrize("name", FILES)
def test_the_files_know_nothing_of_windows(name):
    contents = (FOLDER / name).read_bytes()
    assert b"ReverbReplaySamplerCreate" in contents
    assert b"window" not in contents


def test_a_saved_model_runs(client):
    model = tf.saved_model.load(str(FOLDER / "saved_model"))
    for first in (0, 4):
        sums = model.sum_of_four(client.server_address)
        assert int(sums["values"]) == sum(range(first, first + 4))
        assert float(sums["steps"]) == 6 * sum(range(first, first + 4))


def test_a_dataset_runs(client):
    graph = tf.compat.v1.GraphDef.FromString((FOLDER / "dataset.pb").read_bytes())
    for node in graph.node:
        strings = node.attr["value"].tensor.string_val
        if node.op == "Const" and b"ADDRESS" in strings:
            strings[:] = [client.server_address.encode()]
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    info = [tf.TensorSpec([], dtype) for dtype in reverb.SampleInfo.tf_dtypes()]
    specs = (*info, tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([], tf.int64))
    elements = list(tf.data.experimental.from_variant(variant, specs))
    assert [int(element[-1]) for element in elements] == [0, 1, 2]
    assert [element[-2].shape for element in elements] == [[3, 2]] * 3


def test_the_graph_of_a_session_runs(client):
    with tf.Graph().as_default():
        graph = tf.compat.v1.GraphDef.FromString((FOLDER / "graph.pb").read_bytes())
        tf.import_graph_def(graph, name="")
        with tf.compat.v1.Session() as session:
            address = {"address:0": client.server_address}
            session.run("start", address)
            assert [int(session.run("value:0")) for _ in range(4)] == [0, 1, 2, 3]
            values = []
            while not len(values):  # The op itself returns after 50 ms, perhaps without rows.
                values, keys = session.run(["values:0", "keys:0"], address)
            assert (len(values), len(keys)) == (2, 2)
