# SPDX-License-Identifier: Apache-2.0
"""Objects with values in memory are one column in every call, also those that are sequences."""

import array
import ctypes
import types

import numpy as np
import pytest

from reverb import testing
from support.one_step_items import insert, legacy, patterns, sequence, trajectory

BUFFERS = {
    "array.array": array.array("d", [1.0, 2.0]),
    "memoryview": memoryview(b"abc"),
    "ctypes": (ctypes.c_int * 2)(4, 5),
}


def insert_batch(client, step):
    rows = {name: np.asarray(leaf)[None] for name, leaf in step.items()}
    client.insert_batch({"x": memoryview(rows["x"])}, {"table": 1.0})


@pytest.fixture(scope="module")
def server():
    with testing.server([testing.table("table")]) as made:
        yield made


@pytest.mark.parametrize("write", [insert, insert_batch, legacy, trajectory, sequence, patterns])
@pytest.mark.parametrize("kind", BUFFERS)
def test_a_buffer_is_one_column(server, reach, write, kind):
    client = reach(server)
    client.reset("table")
    for _ in range(2):
        write(client, {"x": BUFFERS[kind]})
    for sample in client.scan("table"):
        (column,) = sample.data
        np.testing.assert_array_equal(column[0], np.asarray(BUFFERS[kind]))


def test_a_container_of_python_is_flattened_each_time(server, reach):
    """It has one leaf, as many as a value that is no container."""
    client = reach(server)
    client.reset("table")
    step = {"x": types.MappingProxyType({"y": np.zeros(2)})}
    with client.trajectory_writer(1) as writer:
        for _ in range(3):
            writer.append(step)
            writer.create_item("table", 1.0, {"x": writer.history["x"]["y"][-1:]})
    for _ in range(3):
        client.insert(step, {"table": 1.0})
    assert [sample.data[0].shape for sample in client.scan("table")] == [(1, 2)] * 6
