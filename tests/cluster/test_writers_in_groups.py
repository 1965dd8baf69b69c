# SPDX-License-Identifier: Apache-2.0
"""Promises of writers hold on a group too: columns by name, and items of dropped writers."""

import collections

import numpy as np
import pytest

import reverb
from reverb import errors, structured, testing
from reverb.specs import TensorSpec
from support.waiting import DEADLINE_S

SIGNATURE = {name: TensorSpec([None], np.float32) for name in ("a", "b")}
Swapped = collections.namedtuple("Swapped", ["b", "a"])


@pytest.fixture
def client(start):
    servers = [start(testing.table("table", signature=SIGNATURE)) for _ in range(3)]
    places = ",".join(f"localhost:{server.port}" for server in servers)
    return reverb.Client(f"shards:///{places}", connect_timeout_s=DEADLINE_S)


def stored(client):
    return {tuple(float(column[0]) for column in sample.data) for sample in client.scan("table")}


def test_a_batch_is_put_into_the_order_of_the_signature(client):
    rows = Swapped(b=np.full(9, 2, np.float32), a=np.full(9, 1, np.float32))
    client.insert_batch(rows, {"table": 1.0})
    assert stored(client) == {(1.0, 2.0)}
    assert client.server_info()["table"].current_size == 9


def test_other_names_are_an_error_and_insert_nothing(client):
    rows = {name: np.zeros(9, np.float32) for name in ("x", "y")}
    with pytest.raises(errors.SignatureMismatchError, match=r"\[x, y\].* \[a, b\]"):
        client.insert_batch(rows, {"table": 1.0})
    assert client.server_info()["table"].current_size == 0


def test_sequences_with_the_largest_priority_are_sorted(client):
    step = Swapped(b=np.full(3, 2, np.float32), a=np.full(3, 1, np.float32))
    with client.sequence_writer("table", 2, 3) as writer:
        for _ in range(3):
            writer.append(step, priorities=reverb.MAX_PRIORITY)
    assert stored(client) == {(1.0, 2.0)}
    assert {len(sample.data[0]) for sample in client.scan("table")} == {2}


def test_items_of_dropped_structured_writers_are_there_at_once(client):
    reference = structured.create_reference_step({"a": None, "b": None})
    pattern = {name: reference[name][-1:] for name in ("a", "b")}
    for value in range(20):
        writer = client.structured_writer([structured.create_config(pattern, "table")])
        writer.append({"a": np.float32(value), "b": np.float32(0)})
        del writer
        assert client.server_info()["table"].current_size == value + 1
    assert stored(client) == {(float(value), 0.0) for value in range(20)}
