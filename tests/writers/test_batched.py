# SPDX-License-Identifier: Apache-2.0
"""One writer for several environments that are stepped together."""

import numpy as np
import pytest
import tree

from reverb import errors, testing

BATCH = 3


@pytest.fixture(scope="module")
def client(reach):
    with testing.server([testing.table("table")]) as made:
        yield reach(made)


@pytest.fixture
def writer(client):
    client.reset("table")
    with client.batched_trajectory_writer(BATCH, 4) as made:
        yield made


def step(number):
    """Environment `i` sees `10 * i + number`."""
    return {"x": 10 * np.arange(BATCH) + number}


def all_items(client):
    found = []
    while client.server_info()["table"].current_size:
        (sample,) = client.sample("table", emit_timesteps=False)
        found.append((sample.data[0].tolist(), sample.info.priority))
        client.mutate_priorities("table", deletes=[sample.info.key])
    return found


def test_every_environment_gets_its_item(client, writer):
    for number in range(3):
        writer.append(step(number))
    assert writer.batch_size == BATCH
    assert writer.create_items("table", [1.0, 2.0, 3.0], {"x": writer.history["x"][-2:]}) == BATCH
    writer.flush()
    assert all_items(client) == [([1, 2], 1.0), ([11, 12], 2.0), ([21, 22], 3.0)]


def test_episodes_end_one_by_one(client, writer):
    for number in range(4):
        writer.append(step(number))
        writer.end_episode(where=[number == 1, False, number == 3])
    np.testing.assert_array_equal(writer.episode_steps, [2, 4, 0])
    assert writer.episode_steps.dtype == np.int64
    assert writer.create_items("table", 1.0, writer.history["x"][-3:]) == 1
    assert writer.create_items("table", 1.0, writer.history["x"][-2:]) == 2
    writer.end_episode()
    np.testing.assert_array_equal(writer.episode_steps, [0, 0, 0])
    writer.flush()
    found = [data for data, _ in all_items(client)]
    assert found == [[11, 12, 13], [2, 3], [12, 13]]


@pytest.mark.parametrize(
    "index", [slice(-3, None), [-3, -2, -1], np.array([-3, -2, -1]), slice(-3, 10)]
)
def test_steps_before_the_first_are_the_first(client, writer, index):
    for number in range(3):
        writer.append(step(number))
        writer.end_episode(where=[False, number == 0, number == 1])
    column = writer.history["x"].select(index, pad="first")
    expected = [[0, 1, 2], [11, 11, 12], [22, 22, 22]]
    np.testing.assert_array_equal(column.numpy(), expected)
    assert writer.create_items("table", 1.0, column) == BATCH
    writer.flush()
    assert [data for data, _ in all_items(client)] == expected


def test_padding_needs_a_step(client, writer):
    writer.append(step(0))
    writer.append(step(1))
    writer.end_episode(where=[True, False, False])
    history = writer.history["x"]
    assert writer.create_items("table", 1.0, history.select([-2], pad="first")) == 2
    writer.append(step(2))
    # One step before the newest: where there is one step alone, that is it.
    assert writer.create_items("table", 1.0, history.select(-2, pad="first")) == BATCH
    assert writer.create_items("table", 1.0, history.select(slice(-4, -1), pad="first")) == BATCH
    writer.flush()
    slices = [[2, 2, 2], [10, 10, 11], [20, 20, 21]]
    assert [data for data, _ in all_items(client)] == [[10], [20], 2, 11, 21, *slices]


def test_steps_that_have_expired_are_not_padded(writer):
    for number in range(6):
        writer.append(step(number))
    history = writer.history["x"]
    assert writer.create_items("table", 1.0, history.select(slice(-4, None), pad="first")) == BATCH
    assert writer.create_items("table", 1.0, history.select(slice(-5, None), pad="first")) == 0


def test_padding_has_one_kind(writer):
    writer.append(step(0))
    with pytest.raises(errors.InvalidArgumentError, match='pad must be "first", got "zeros"'):
        writer.history["x"].select(-1, pad="zeros")


@pytest.mark.parametrize("where", [[True], [[True] * BATCH]])
def test_the_choice_has_a_value_for_every_environment(writer, where):
    for _ in range(2):  # With a new structure, and with a known one.
        with pytest.raises(errors.InvalidArgumentError, match=r"where must have shape \[3\]"):
            writer.append(step(0), where=where)
        writer.append(step(0))


def test_columns_show_their_shape(writer):
    for number in range(3):
        writer.append(step(number) | {"y": np.zeros((BATCH, 2), np.float32)})
    history = writer.history
    assert (history["x"][-1].shape, history["x"][-1].is_squeezed) == ((BATCH,), True)
    column = history["y"][-2:]
    assert (column.shape, column.dtype, len(column)) == ((BATCH, 2, 2), np.float32, 2)
    np.testing.assert_array_equal(history["x"][-2:].numpy(), [[1, 2], [11, 12], [21, 22]])
    assert not tree.is_nested(column)
    assert not tree.is_nested(history["x"])


def test_the_history_grows_with_new_fields(client, writer):
    writer.append(step(0))
    writer.append(step(1) | {"y": np.ones(BATCH)}, partial_step=True)
    writer.append({"z": [np.ones((BATCH, 1))]})
    assert list(writer.history) == ["x", "y", "z"]
    np.testing.assert_array_equal(writer.episode_steps, [2, 2, 2])


def test_columns_come_from_a_batched_history(client, writer):
    single = client.trajectory_writer(1)
    single.append(1)
    for column in (single.history[-1], single.history, object()):
        with pytest.raises(TypeError, match="slices of the history of this writer"):
            writer.create_items("table", 1.0, [column])


@pytest.mark.parametrize("ends", ["episode", "chunk"])
def test_items_of_complete_chunks_are_sent_without_a_flush(client, until, ends):
    client.reset("table")
    with client.batched_trajectory_writer(2, 8) as writer:
        length = 8 if ends == "episode" else 4
        writer.configure(("x",), num_keep_alive_refs=8, max_chunk_length=length)
        for number in range(4):
            writer.append({"x": np.full(2, number)})
            if number < 3:
                writer.create_items("table", 1.0, {"x": writer.history["x"][-1]})
        if ends == "episode":
            assert client.server_info()["table"].current_size == 0
            writer.end_episode()
        until(lambda: client.server_info()["table"].current_size == 6)
