# SPDX-License-Identifier: Apache-2.0
"""The structured writer: what its configs may be, and the errors of its calls."""

import numpy as np
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


@pytest.mark.parametrize(
    "index", [slice(None), 0, 3, slice(1, None), slice(-3, None, -1), slice(-2, -3), slice(-2, 1)]
)
def test_a_slice_that_makes_no_sense_is_refused(client, index):
    good, bad = config(lambda step: step[-1]), config(lambda step: step[index])
    with pytest.raises(ValueError, match="position 1"):
        client.structured_writer([good, bad])


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.ClearField("table"),
        lambda made: made.ClearField("flat"),
        lambda made: made.conditions.add(eq=1),
        lambda made: made.conditions.add(step_index=True),
        lambda made: made.conditions.add(step_index=True, mod_eq={"mod": 0, "eq": 0}),
        lambda made: made.conditions.add(is_end_episode=True, eq=2),
        lambda made: made.conditions.add(is_end_episode=True, eq=1, inverse=True),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(client, change):
    made = config(lambda step: step[-1])
    change(made)
    with pytest.raises(ValueError, match="position 0"):
        client.structured_writer([made])


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


def test_a_condition_on_data(client):
    at_one = structured.Condition.data(STEP)["b"][0] == 1
    writer = client.structured_writer(
        [config(lambda step: step["a"][-1], STEP, conditions=[at_one])]
    )
    for i, flag in enumerate([0, 1, 0, 1]):
        writer.append({"a": i, "b": [flag, None]})
    writer.flush()
    assert all_items(client) == [[1], [3]]


def test_partial_steps(client):
    writer = client.structured_writer(
        [config(lambda step: [step["a"][-1], step["b"][0][-1]], STEP)]
    )
    assert not writer.step_is_open
    writer.append({"a": 1, "b": [None, None]}, partial_step=True)
    assert writer.step_is_open
    with pytest.raises(RuntimeError, match="already been set"):
        writer.append({"a": 2, "b": [None, None]})
    writer.append({"a": None, "b": [3, None]})
    assert not writer.step_is_open
    writer.flush()
    assert all_items(client) == [[1, 3]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_td_error_weighs_maximum_and_mean(client, dtype):
    step = {"a": None, "error": None}
    priority = structured.td_error(0.9, step, lambda step: step["error"])
    writer = client.structured_writer(
        [config(lambda step: step["error"][-2:], step, priority=priority)]
    )
    for value in (1, -3, 2):
        writer.append({"a": 0, "error": dtype(value)})
    writer.flush()
    # 0.9 * 3 + 0.1 * 2, then 0.9 * 3 + 0.1 * 2.5.
    found = client.sample_batch("table", 2).info.priority
    assert found[0] == pytest.approx(2.9)


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
