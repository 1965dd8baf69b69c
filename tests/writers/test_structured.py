# SPDX-License-Identifier: Apache-2.0
"""The structured writer: what its configs may be, and the errors of its calls."""

import pytest

import reverb
from reverb import structured, testing

STEP = {"a": None, "b": [None, None]}


# A server for each test: a writer that is dropped delivers in the background what it has.
@pytest.fixture
def client(reach):
    with testing.server([testing.table("table"), reverb.Table.queue("queue", 1)]) as made:
        yield reach(made)


def config(transform, step=None, table="table", **options):
    pattern = structured.pattern_from_transform(step, transform)
    return structured.create_config(pattern, table, **options)


def all_items(client):
    size = client.server_info()["table"].current_size
    found = []
    for _ in range(size):
        (sample,) = client.sample("table", emit_timesteps=False)
        found.append([column.tolist() for column in sample.data])
        client.mutate_priorities("table", deletes=[sample.info.key])
    return found


def test_items_follow_from_the_pattern(client):
    writer = client.structured_writer(
        [
            config(
                lambda step: {"window": step["a"][-4::2], "last": step["b"][1][-1]},
                STEP,
                conditions=[structured.Condition.step_index() >= 4],
            )
        ]
    )
    for i in range(6):
        writer.append({"a": i, "b": [0, float(i)]})
    writer.flush()
    assert all_items(client) == [[4.0, [1, 3]], [5.0, [2, 4]]]


def test_timeouts(client):
    writer = client.structured_writer([config(lambda step: step[-1], table="queue")])
    for i in range(3):
        writer.append(i)
    for call in (writer.flush, writer.end_episode):
        for timeout_ms in (0, 50):
            with pytest.raises(reverb.DeadlineExceededError):
                call(timeout_ms=timeout_ms)
    with pytest.raises(ValueError, match="block_until_num_items must be at least 0, got -1"):
        writer.flush(-1)
    client.reset("queue")
    client.reset("queue")
    writer.flush(timeout_ms=10_000)
