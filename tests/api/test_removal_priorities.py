# SPDX-License-Identifier: Apache-2.0
"""Priorities for removers: every writer accepts them, and shards keep them."""

import numpy as np
import pytest

import reverb
from reverb import structured_writer as structured
from reverb import testing
from reverb.cluster import shard_calls
from reverb.errors import InvalidArgumentError

# Memory of a removal priority, in bytes.
REMOVAL_BYTES = 26


def make_table(max_size=4):
    """A table that loses the item with the smallest removal priority."""
    sampler, remover = reverb.selectors.Prioritized(1.0), reverb.selectors.MinHeap()
    return testing.table("t", sampler=sampler, remover=remover, max_size=max_size)


@pytest.fixture
def client(serve):
    """A client of a server whose table `t` has four items at most."""
    return serve(make_table())


def values(client):
    """The first value of each item, oldest first."""
    return [int(np.ravel(sample.data[0])[0]) for sample in client.scan("t")]


def left_after_one_more(client):
    """Inserts items that stay; what had been there leaves in the order of its removal priority."""
    left, before = [], values(client)
    while before:
        client.insert(-1, {"t": 1.0}, removal_priorities={"t": 1e9})
        after = [value for value in values(client) if value >= 0]
        left += [value for value in before if value not in after]
        before = after
    return left


REMOVAL = [3.0, 1.0, 4.0, 2.0]
ORDER = [1, 3, 0, 2]


def test_a_batch_has_one_for_each_row(client):
    client.insert_batch(np.arange(4), {"t": 5.0}, removal_priorities={"t": REMOVAL})
    assert left_after_one_more(client) == ORDER


def test_the_writer_of_whole_steps_takes_it(client):
    with client.writer(max_sequence_length=1) as writer:
        for value, removal in enumerate(REMOVAL):
            writer.append(np.int64(value))
            writer.create_item("t", 1, 5.0, removal_priority=removal)
    assert left_after_one_more(client) == ORDER


def test_the_batched_writer_takes_one_for_each_environment(client):
    with client.batched_trajectory_writer(batch_size=4, num_keep_alive_refs=1) as writer:
        writer.append(np.arange(4))
        writer.create_items("t", 5.0, writer.history[-1:], removal_priorities=REMOVAL)
        with pytest.raises(InvalidArgumentError, match=r"removal_priorities must have shape \[4\]"):
            writer.create_items("t", 5.0, writer.history[-1:], removal_priorities=[1.0, 2.0])
        with pytest.raises(InvalidArgumentError, match="priority must not be NaN"):
            writer.create_items("t", 5.0, writer.history[-1:], removal_priorities=np.nan)
    assert left_after_one_more(client) == ORDER


def test_the_sequence_writer_takes_one_for_each_environment(client):
    with client.sequence_writer("t", sequence_length=1, batch_size=4) as writer:
        writer.append(np.arange(4), priorities=5.0, removal_priorities=REMOVAL)
        with pytest.raises(InvalidArgumentError, match="removal_priorities must be numbers"):
            writer.append(np.arange(4), removal_priorities=float("nan"))
        with pytest.raises(InvalidArgumentError, match=r"removal_priorities must have shape \[4\]"):
            writer.append(np.arange(4), removal_priorities=[1.0])
    assert left_after_one_more(client) == ORDER


def test_patterns_have_one_each(client):
    step = {"x": np.int64(0), "error": np.float32(0)}
    configs = [
        structured.create_config(
            structured.pattern_from_transform(step, lambda ref: {"x": ref["x"][-1:]}),
            "t",
            [structured.Condition.step_index() <= 1],
            removal_priority=structured.constant_priority_fn(2.5),
        ),
        structured.create_config(
            structured.pattern_from_transform(
                step, lambda ref: {"x": ref["x"][-1:], "error": ref["error"][-1:]}
            ),
            "t",
            [structured.Condition.step_index() >= 2],
            priority=structured.constant_priority_fn(5.0),
            removal_priority=structured.td_error(1.0, step, lambda ref: ref["error"]),
        ),
    ]
    writer = client.structured_writer(configs)
    for value, error in enumerate([9.0, 9.0, -4.0, 2.0]):
        writer.append({"x": np.int64(value), "error": np.float32(error)})
    writer.flush()
    found = [(int(it.data[-1][0]), it.info.priority) for it in client.scan("t")]
    assert found == [(0, 1.0), (1, 1.0), (2, 5.0), (3, 5.0)]
    # By 2.5, 2.5, 4 and 2. Of equals, the older one leaves.
    left, before = [], [value for value, _ in found]
    while before:
        client.insert([-1], {"t": 1.0}, removal_priorities={"t": 1e9})
        after = [int(it.data[-1][0]) for it in client.scan("t")]
        left += [value for value in before if value not in after]
        before = [value for value in after if value >= 0]
    assert left == [3, 0, 1, 2]


def test_every_writer_takes_the_largest_priority(client):
    """`MAX_PRIORITY` is a NaN, which has to pass through messages and arrays."""
    client.insert(np.int64(0), {"t": 7.0})
    with client.sequence_writer("t", sequence_length=1) as writer:
        writer.append(np.int64(1), priorities=reverb.MAX_PRIORITY)
    with client.sequence_writer("t", sequence_length=1, batch_size=2) as writer:
        writer.append(np.arange(2), priorities=[reverb.MAX_PRIORITY, 2.0], is_last=True)
    assert [sample.info.priority for sample in client.scan("t")] == [7.0, 7.0, 7.0, 2.0]
    client.reset("t")
    client.insert(np.int64(0), {"t": 7.0})
    step = np.int64(0)
    config = structured.create_config(
        structured.pattern_from_transform(step, lambda ref: ref[-1:]),
        "t",
        priority=structured.constant_priority_fn(reverb.MAX_PRIORITY),
    )
    writer = client.structured_writer([config])
    writer.append(step)
    writer.flush()
    assert [sample.info.priority for sample in client.scan("t")] == [7.0, 7.0]


def test_a_table_that_gets_no_item_has_no_removal_priority(client):
    text = "removal_priorities names table 'other', which is not one of priorities: \\['t'\\]"
    with pytest.raises(InvalidArgumentError, match=text):
        client.insert(0, {"t": 1.0}, removal_priorities={"other": 1.0})
    with pytest.raises(InvalidArgumentError, match=text):
        client.insert_batch(np.arange(2), {"t": 1.0}, removal_priorities={"other": 1.0})
    with pytest.raises(InvalidArgumentError, match="removal_priorities"):
        client.insert_batch(np.arange(2), {"t": 1.0}, removal_priorities={"t": [1.0]})
    assert values(client) == []


def test_it_is_counted_in_the_bytes_of_the_table(client):
    def table_bytes():
        return client.status().tables["t"].bytes

    client.insert_batch(np.arange(4), {"t": 5.0})
    without = table_bytes()
    client.reset("t")
    client.insert_batch(np.arange(4), {"t": 5.0}, removal_priorities={"t": REMOVAL})
    assert table_bytes() - without == 4 * REMOVAL_BYTES
    client.insert(0, {"t": 1.0}, removal_priorities={"t": 9.0})
    assert table_bytes() - without == 4 * REMOVAL_BYTES
    client.mutate_priorities("t", deletes=[sample.info.key for sample in client.scan("t")])
    client.insert_batch(np.arange(4), {"t": 5.0})
    assert table_bytes() == without


def test_items_that_move_to_another_server_keep_it():
    with reverb.Server([make_table()]) as source, reverb.Server([make_table()]) as target:
        clients = [reverb.Client(f"127.0.0.1:{server.port}") for server in (source, target)]
        clients[0].insert_batch(np.arange(3), {"t": 5.0}, removal_priorities={"t": REMOVAL[:3]})
        clients[0].insert(3, {"t": 2.0})
        assert shard_calls.move_items(*clients, "t", []) == (4, 0)
        assert values(clients[1]) == [0, 1, 2, 3]
        assert left_after_one_more(clients[1]) == ORDER
