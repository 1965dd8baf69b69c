# SPDX-License-Identifier: Apache-2.0
"""Items and requests that are well-formed messages and make no sense."""

import grpc
import numpy as np
import pytest

from reverb.core import protos
from support.wire import messages
from support.wire.messages import insert, item, numbers

Code = grpc.StatusCode


def refused(wire, *requests, code, text=""):
    """Sends messages on a stream and checks how the server ends it."""
    stream = wire.insert_stream()
    for request in requests:
        stream.send(request)
    got, details = stream.status()
    assert (got, text in details) == (code, True), (got, details)


def size(server, table="items"):
    return server.client.server_info()[table].current_size


def test_a_chunk_of_another_stream(wire):
    stream = wire.insert_stream()
    stream.send(insert([numbers(1)], [item(5, "items", (1, 0, 1, 0))], keep=[1]))
    stream.confirmed(1)
    refused(wire, insert([], [item(6, "items", (1, 0, 1, 0))]), code=Code.INTERNAL)
    stream.cancel()


@pytest.mark.parametrize("name", ["", "unknown", "x" * 60_000, "items\0", "ítems", "../items"])
def test_an_unknown_table(wire, name):
    request = insert([numbers(1)], [item(5, name, (1, 0, 1, 0))])
    refused(wire, request, code=Code.NOT_FOUND, text="items, prioritized" if len(name) < 99 else "")
    with pytest.raises(grpc.RpcError) as caught:
        wire.unary("Reset", protos.ResetRequest(table=name))
    assert caught.value.code() == Code.NOT_FOUND


def test_columns_of_mixed_types(wire, server):
    chunks = [
        messages.chunk(1, np.zeros(3, np.int32)),
        messages.chunk(2, np.zeros(3, np.float64)),
        messages.chunk(3, np.zeros((3, 2), np.int32)),
    ]
    for other in (2, 3):
        made = item(5, "items", (1, 0, 1, 0), (other, 0, 1, 0))
        refused(wire, insert(chunks, [made]), code=Code.INVALID_ARGUMENT)
    assert size(server) == 0


def test_a_squeezed_column_of_several_steps(wire):
    made = protos.PrioritizedItem(
        key=5,
        table="items",
        priority=1.0,
        flat_trajectory=messages.trajectory([[(1, 0, 2, 0)]], squeeze=True),
    )
    refused(wire, insert([numbers(1)], [made]), code=Code.INVALID_ARGUMENT)


@pytest.mark.parametrize("priority", [float("nan"), -1.0, -1e-300, float("inf"), -float("inf")])
def test_bad_priorities_of_new_items(wire, server, priority):
    made = item(5, "prioritized", (1, 0, 1, 0), priority=priority)
    refused(wire, insert([numbers(1)], [made]), code=Code.INVALID_ARGUMENT, text="riority")
    assert size(server, "prioritized") == 0
    # The table goes on.
    stream = wire.insert_stream()
    stream.send(insert([numbers(1)], [item(6, "prioritized", (1, 0, 1, 0))]))
    stream.confirmed(1)
    stream.cancel()
    assert server.client.sample_batch("prioritized", 1).info.key == [6]


@pytest.mark.parametrize("priority", [float("nan"), -1.0, float("inf"), -float("inf")])
def test_bad_priorities_of_old_items(wire, server, priority):
    stream = wire.insert_stream()
    stream.send(insert([numbers(1)], [item(6, "prioritized", (1, 0, 1, 0), priority=2.0)]))
    stream.confirmed(1)
    stream.cancel()
    request = protos.MutatePrioritiesRequest(table="prioritized", delete_keys=[7])
    request.updates.add(key=6, priority=3.0)
    request.updates.add(key=6, priority=priority)
    with pytest.raises(grpc.RpcError) as caught:
        wire.unary("MutatePriorities", request)
    assert caught.value.code() == Code.INVALID_ARGUMENT
    sampled = server.client.sample_batch("prioritized", 1).info
    assert (sampled.priority, sampled.probability) == (2.0, 1.0)


@pytest.mark.parametrize("priority", [float("nan"), -float("inf"), float("inf"), -1.0, 0.0])
def test_any_priority_leaves_a_heap_in_order(wire, server, priority):
    stream = wire.insert_stream()
    for key in range(10, 20):
        stream.send(insert([numbers(1)], [item(key, "heap", (1, 0, 1, 0), priority=key)]))
    assert len(stream.confirmed(10)) == 10
    stream.send(insert([numbers(1)], [item(5, "heap", (1, 0, 1, 0), priority=priority)]))
    if priority == priority:
        stream.confirmed(1)
        expected = 5 if priority == float("inf") else 19
    else:
        assert stream.status()[0] == Code.INVALID_ARGUMENT
        expected = 19
    stream.cancel()
    assert server.client.sample_batch("heap", 1).info.key == [expected]


@pytest.mark.parametrize("count", [0, -1, -(2**63)])
def test_samples_of_no_number(wire, count):
    stream = wire.sample_stream()
    stream.send(protos.SampleStreamRequest(table="items", num_samples=count))
    assert stream.status()[0] == Code.INVALID_ARGUMENT


@pytest.mark.parametrize("count", [2**62, 2**63 - 1])
def test_more_samples_than_anybody_can_read(wire, server, count):
    server.client.insert([np.zeros(1000)], {"items": 1.0})
    before = server.memory()
    stream = wire.sample_stream()
    stream.send(protos.SampleStreamRequest(table="items", num_samples=count))
    for _ in range(20):
        assert stream.receive().entries
    stream.cancel()
    stream.status()
    assert server.memory() < before + 100e6


def test_a_gigantic_keep_list(wire, server):
    keep = np.random.default_rng(0).integers(0, 2**63, 2_000_000).tolist()
    request = insert([numbers(1)], [item(5, "items", (1, 0, 1, 0))], keep)
    before = server.memory()
    refused(wire, request, code=Code.FAILED_PRECONDITION)
    assert server.memory() < before + 200e6


def test_an_item_of_very_many_slices(wire, server):
    stream = wire.insert_stream()
    stream.send(
        insert([numbers(1)], [item(5, "items", *[(1, i % 3, 1, 0) for i in range(200_000)])])
    )
    stream.confirmed(1)
    stream.cancel()
    assert server.client.sample_batch("items", 1).data[0].shape == (1, 200_000)


def test_an_item_of_very_many_columns(wire, server):
    made = protos.PrioritizedItem(
        key=5,
        table="items",
        priority=1.0,
        flat_trajectory=messages.trajectory([[(1, 0, 1, 0)]] * 50_000),
    )
    stream = wire.insert_stream()
    stream.send(insert([numbers(1)], [made]))
    stream.confirmed(1)
    stream.cancel()
    assert len(server.client.sample_batch("items", 1).data) == 50_000


def test_mutations_of_nothing(wire, server):
    wire.unary("MutatePriorities", protos.MutatePrioritiesRequest(table="items"))
    request = protos.MutatePrioritiesRequest(table="items", delete_keys=range(500_000))
    for key in range(100_000):
        request.updates.add(key=key, priority=1.0)
    wire.unary("MutatePriorities", request)
    assert size(server) == 0
