# SPDX-License-Identifier: Apache-2.0
"""The writer of sequences: which items it makes, on both paths."""

import collections
import itertools
import threading

import numpy as np
import pytest
import tree

import reverb
from reverb import errors, testing

Step = collections.namedtuple("Step", ["observation", "action"])


@pytest.fixture(scope="module")
def client(reach):
    tables = [
        testing.table("table", max_size=10_000, max_times_sampled=1),
        testing.table("other", max_times_sampled=1),
        reverb.Table.queue("queue", 1),
    ]
    with testing.server(tables) as made:
        yield reach(made)


@pytest.fixture(autouse=True)
def _clean(client):
    for table in ["table", "other", "queue"]:
        client.reset(table)


def items(client, table="table"):
    """Takes what a table holds, oldest first: (columns as lists, priority)."""
    count = client.server_info()[table].current_size
    samples = client.sample(table, count, emit_timesteps=False) if count else []
    return [([c.tolist() for c in sample.data], sample.info.priority) for sample in samples]


def values(client, table="table"):
    """The first column of all items."""
    return [columns[0] for columns, _ in items(client, table)]


def write(writer, episodes):
    """Appends episodes of numbers; returns what the calls returned."""
    return [
        writer.append({"x": np.int64(x)}, is_last=i == len(episode) - 1)
        for episode in episodes
        for i, x in enumerate(episode)
    ]


WINDOWS = {
    "single steps": (1, 1, [3], [[0], [1], [2]]),
    "every window": (2, 1, [4], [[0, 1], [1, 2], [2, 3]]),
    "windows that do not overlap": (2, 2, [5], [[0, 1], [2, 3]]),
    "gaps between windows": (2, 3, [8], [[0, 1], [3, 4], [6, 7]]),
    "one window of the episode": (4, 1, [4], [[0, 1, 2, 3]]),
    "an episode that is too short": (4, 1, [3], []),
    "several episodes": (2, 1, [2, 1, 3], [[0, 1], [3, 4], [4, 5]]),
    "a stride begins anew in each episode": (2, 2, [3, 4], [[0, 1], [3, 4], [5, 6]]),
    "overlap that is not one step": (3, 2, [7], [[0, 1, 2], [2, 3, 4], [4, 5, 6]]),
}  # fmt: skip


def episodes_of(lengths):
    first = np.cumsum([0, *lengths])
    return [list(range(begin, end)) for begin, end in itertools.pairwise(first)]


@pytest.mark.parametrize("name", WINDOWS)
def test_items_are_the_windows_of_episodes(client, name):
    length, stride, lengths, expected = WINDOWS[name]
    with client.sequence_writer("table", length, stride_length=stride) as writer:
        counts = write(writer, episodes_of(lengths))
    assert sum(counts) == len(expected)
    assert values(client) == expected


def test_the_last_steps_stay_unchanged_if_arrays_are_reused(client):
    buffer = np.zeros(2, np.int64)
    with client.sequence_writer("table", 2) as writer:
        for i in range(3):
            buffer[:] = i
            writer.append({"x": buffer})
    assert values(client) == [[[0, 0], [1, 1]], [[1, 1], [2, 2]]]


def test_columns_come_in_the_order_of_tree(client):
    step = {"b": {"y": np.float32(1), "x": [np.uint8(2), True]}, "a": "text"}
    with client.sequence_writer("table", 1) as writer:
        writer.append(step)
        writer.append(step)
    assert tree.flatten(step) == ["text", np.uint8(2), True, np.float32(1)]
    assert items(client) == [([[b"text"], [2], [True], [1.0]], 1.0)] * 2


def test_a_single_array_is_a_step(client):
    with client.sequence_writer("table", 2) as writer:
        for i in range(2):
            writer.append(np.full(2, i))
    assert values(client) == [[[0, 0], [1, 1]]]


def test_the_step_that_completes_an_item_gives_its_priority(client):
    with client.sequence_writer("table", 2, batch_size=2) as writer:
        writer.append({"x": np.arange(2)}, priorities=9.0)
        writer.append({"x": np.arange(2)}, priorities=[1.5, 2.5])
        writer.append({"x": np.arange(2)}, priorities=np.array([3, 4], np.int32))
        writer.append({"x": np.arange(2)}, priorities=5)
    assert [priority for _, priority in items(client)] == [1.5, 2.5, 3.0, 4.0, 5.0, 5.0]


def test_is_last_of_numpy_and_python_are_the_same(client):
    with client.sequence_writer("table", 2, batch_size=2) as writer:
        step = {"x": np.arange(2)}
        for is_last in (True, np.True_, np.array(True), [True, True], np.ones(2, bool)):
            writer.append(step, is_last=is_last)
            assert writer.episode_steps.tolist() == [0, 0]


def test_episode_steps_is_an_int_without_batch_size(client):
    writer = client.sequence_writer("table", 2)
    assert (writer.batch_size, writer.episode_steps) == (None, 0)
    writer.append({"x": 1})
    assert writer.episode_steps == 1
    assert isinstance(writer.episode_steps, int)


# --- Whole episodes -------------------------------------------------------------------------------


def test_the_rest_of_an_episode_that_is_too_long_is_ignored(client, error_says):
    with client.sequence_writer("table", None, max_sequence_length=2) as writer:
        write(writer, [[0, 1]])
        writer.append({"x": np.int64(10)})
        writer.append({"x": np.int64(11)})
        error_says(
            lambda: writer.append({"x": np.int64(12)}),
            errors.InvalidArgumentError,
            "The episode is longer than max_sequence_length = 2 steps. Nothing of it is written, "
            "and its steps are ignored until one with is_last. Raise max_sequence_length, or leave "
            "such episodes out without an error by drop_long_episodes=True.",
        )
        assert writer.episode_steps == 3
        assert writer.append({"x": np.int64(13)}) == 0
        assert writer.append({"x": np.int64(14)}, is_last=True) == 0
        assert write(writer, [[20]]) == [1]
        assert writer.num_dropped_episodes == 1
    assert values(client) == [[0, 1], [20]]


def test_a_long_episode_of_one_row_leaves_the_others_alone(client, error_says):
    with client.sequence_writer("table", None, 4, max_sequence_length=2) as writer:

        def step(i, *last):
            is_last = [row in last for row in range(4)]
            return writer.append({"x": np.arange(4) * 100 + i}, is_last=is_last)

        step(0)
        step(1, 0)
        error_says(
            lambda: step(2, 3),
            errors.InvalidArgumentError,
            "The episodes of rows 1, 2, 3 are longer than max_sequence_length = 2 steps. Nothing "
            "of it is written, and its steps are ignored until one with is_last; the other rows "
            "were appended. Raise max_sequence_length, or leave such episodes out without an error "
            "by drop_long_episodes=True.",
        )
        assert writer.episode_steps.tolist() == [1, 3, 3, 0]
        assert step(3, 0, 1, 2, 3) == 2
        assert writer.num_dropped_episodes == 3
    assert values(client) == [[0, 1], [2, 3], [303]]


def test_the_row_of_a_long_episode_is_named(client):
    with client.sequence_writer("table", None, 2, max_sequence_length=1) as writer:
        writer.append({"x": np.arange(2)}, is_last=[True, False])
        with pytest.raises(errors.InvalidArgumentError, match=r"^The episode of row 1 is longer"):
            writer.append({"x": np.arange(2)})


# --- Ends -----------------------------------------------------------------------------------------


def test_flush_waits_for_the_table_and_says_what_for(client):
    writer = client.sequence_writer("queue", 1)
    writer.append({"x": 0})
    writer.append({"x": 1})
    writer.flush(block_until_num_items=1)
    with pytest.raises(errors.DeadlineExceededError) as caught:
        writer.flush(timeout_ms=30)
    assert "1 items sent to" in str(caught.value)
    assert "Table queue: 1 item(s), max_size 1" in str(caught.value)
    assert values(client, "queue") == [[0]]
    writer.flush()
    assert values(client, "queue") == [[1]]


def test_flush_leaves_the_window_open(client):
    with client.sequence_writer("table", 2) as writer:
        writer.append({"x": 0})
        writer.flush()
        writer.append({"x": 1})
    assert values(client) == [[0, 1]]


def test_threads_may_share_a_writer(client):
    with client.sequence_writer("table", 1, batch_size=2) as writer:

        def run(first):
            for i in range(first, first + 500):
                writer.append({"x": np.full(2, i)})

        threads = [threading.Thread(target=run, args=(1000 * n,)) for n in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    found = [value for (value,) in values(client)]
    for first in range(0, 4000, 1000):
        own = [value for value in found if first <= value < first + 1000]
        assert own == sorted(own)
    assert sorted(found) == sorted(
        2 * [x for n in range(4) for x in range(1000 * n, 1000 * n + 500)]
    )


def test_a_lost_server_is_an_error_and_confirmed_items_stay(start, connect):
    server = start()
    client = connect(server, connect_timeout_s=0.2)
    writer = client.sequence_writer("table", 1)
    writer.append({"x": 0})
    writer.flush()
    assert client.server_info()["table"].current_size == 1
    server.stop()
    writer.append({"x": 1})
    with pytest.raises(errors.UnavailableError, match="No server answered at"):
        writer.flush()
    with pytest.raises(errors.UnavailableError, match="No server answered at"):
        writer.append({"x": 2})


def test_a_column_may_be_named_step(serve):
    """A step that is no nest has this name in texts."""
    spec = {
        "action": reverb.specs.TensorSpec([None], np.int64),
        "step": reverb.specs.TensorSpec([None], np.int64),
    }
    client = serve(testing.table("t", signature=spec))
    with client.sequence_writer("t", 2) as writer:
        for step in range(2):
            writer.append({"action": np.int64(7), "step": np.int64(step)})
    (sample,) = client.sample("t", emit_timesteps=False, unpack_as_table_signature=True)
    assert sample.data["step"].tolist() == [0, 1]


@pytest.mark.parametrize("batch_size", [None, 2])
def test_the_only_column_may_be_named_step(serve, batch_size):
    """It was taken for a step that is no nest, which fits a signature of any name."""
    tables = [
        testing.table(name, signature={name: reverb.specs.TensorSpec([None], np.int64)})
        for name in ("step", "other")
    ]
    client = serve(*tables)
    value = np.int64(3) if batch_size is None else np.full(batch_size, 3)

    def write(table, step):
        with client.sequence_writer(table, 1, batch_size=batch_size) as writer:
            writer.append(step)

    write("step", {"step": value})
    with pytest.raises(errors.SignatureMismatchError, match=r"\[step\].* has \[other\]"):
        write("other", {"step": value})
    # A step that is no nest has no name, and is told of by this one.
    write("other", value)
    assert client.size("step") == client.size("other") == (batch_size or 1)
    with pytest.raises(TypeError, match="Column step: None cannot be stored"):
        write("other", None)
    with client.sequence_writer("other", 2) as writer:
        writer.append(np.int64(1))
        with pytest.raises(errors.InvalidArgumentError, match="but column step is missing"):
            writer.append({"step": np.int64(1)})
