# SPDX-License-Identifier: Apache-2.0
"""The trajectory writer's history, columns, items and errors."""

import collections
import gc

import numpy as np
import pytest
import tree

import reverb
from reverb import errors, testing

Step = collections.namedtuple("Step", ["observation", "action", "extras"])


@pytest.fixture(scope="module")
def client(reach):
    tables = [
        testing.table("table"),
        reverb.Table.queue("queue", 2),
    ]
    with testing.server(tables) as made:
        yield reach(made)


@pytest.fixture(autouse=True)
def _clean(client):
    for table in ("table", "queue"):
        client.reset(table)


@pytest.fixture
def writer(client):
    with client.trajectory_writer(5) as made:
        yield made


def values(column):
    return column.numpy().tolist()


def sampled(client, table="table", count=1):
    samples = client.sample(table, count, emit_timesteps=False)
    return [[column.tolist() for column in sample.data] for sample in samples]


class TestHistory:
    def test_it_is_empty_before_the_first_column(self, writer):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no columns yet"):
                _ = writer.history
            writer.append({})
        assert writer.episode_steps == 2

    def test_it_is_live(self, writer):
        writer.append({"a": 1})
        history = writer.history
        writer.append({"a": 2})
        assert len(history["a"]) == 2
        assert writer.history is history

    def test_it_grows_with_new_fields(self, writer):
        writer.append({"a": 1})
        writer.append({"a": 2, "b": {"c": 3}})
        writer.append({"b": {"c": 4}})
        history = writer.history
        assert list(history) == ["a", "b"]
        assert (len(history["a"]), len(history["b"]["c"])) == (3, 3)
        assert values(history["b"]["c"][-2:]) == [3, 4]
        assert [ref is None for ref in history["b"]["c"]] == [True, False, False]
        assert [ref is None for ref in history["a"]] == [False, False, True]

    @pytest.mark.parametrize("index", [np.int64(0), (0, 1), None, "a", 1.0])
    def test_an_index_of_another_type_is_a_type_error(self, writer, index):
        writer.append(1)
        with pytest.raises(TypeError):
            _ = writer.history[index]

    def test_str_names_the_path(self, writer):
        writer.append({"a": [1]})
        assert "('a', 0)" in str(writer.history["a"][0])


class TestColumn:
    def test_shape_and_dtype(self, writer):
        for _ in range(3):
            writer.append(np.zeros((2, 4), np.float32))
        column, single = writer.history[-2:], writer.history[-1]
        assert (column.shape, column.dtype, len(column)) == ((2, 2, 4), np.float32, 2)
        assert (single.shape, single.dtype, single.is_squeezed) == ((2, 4), np.float32, True)
        assert column[0].shape == (2, 4)
        assert column[1:].shape == (1, 2, 4)
        np.testing.assert_array_equal(np.asarray(column), np.zeros((2, 2, 4)))

    def test_it_can_be_made_of_references(self, writer):
        for step in range(3):
            writer.append(step)
        references = list(writer.history[-3:])
        column = reverb.TrajectoryColumn([references[2], references[0]])
        assert values(column) == [2, 0]
        single = reverb.TrajectoryColumn(references[:1], squeeze=True)
        assert (single.shape, values(single)) == ((), 0)
        with pytest.raises(ValueError, match="squeeze"):
            reverb.TrajectoryColumn(references, squeeze=True)
        with pytest.raises(ValueError, match="cannot contain any None"):
            reverb.TrajectoryColumn([None])

    def test_columns_and_histories_are_leaves(self, writer):
        writer.append(1)
        assert not tree.is_nested(writer.history)
        assert not tree.is_nested(writer.history[-1:])


class TestAppend:
    def test_a_refused_step_leaves_nothing_behind(self, client, writer):
        writer.append({"a": 1, "b": 2})
        with pytest.raises(errors.SignatureMismatchError):
            writer.append({"a": 3, "b": 4.0, "c": 5})
        assert "c" not in writer.history
        assert (writer.episode_steps, len(writer.history["a"])) == (1, 1)
        writer.append({"a": 6, "b": 7, "c": 8})
        assert values(writer.history["a"][:]) == [1, 6]
        assert values(writer.history["c"][-1]) == 8

    def test_a_column_is_set_once_in_a_step(self, writer):
        writer.append({"a": 1, "b": 1})
        writer.append({"a": 2}, partial_step=True)
        with pytest.raises(
            ValueError,
            match=r"Field \('a',\) has already been set in the active step by previous \(partial\) "
            r"append call and thus must be omitted or set to None but got: 3",
        ):
            writer.append({"a": 3, "b": 3})
        writer.append({"a": None, "b": 3})
        assert values(writer.history["a"][:]) == [1, 2]

    def test_a_leaf_may_be_absent(self, writer):
        writer.append(Step(1, None, ()))
        writer.append(Step(None, 2, ()))
        assert [len(writer.history.observation), len(writer.history.action)] == [2, 2]

    def test_many_structures_in_turn(self, client):
        writer = client.trajectory_writer(10)
        steps = [{"a": 1}, {"a": 2, "b": [1]}, {"b": (2,)}, {}, {"c": {"d": 5}, "a": 3}] * 2
        for step in steps:
            writer.append(step)
        assert writer.episode_steps == len(steps)
        assert [ref is None for ref in writer.history["a"]] == [False, False, True, True, False] * 2


class TestCreateItem:
    @pytest.mark.parametrize(
        "nest",
        [
            lambda h: h["a"][-1],
            lambda h: {"y": h["a"][-2:], "x": h["b"][-1]},
            lambda h: [h["a"][-1], (h["b"][-2:],)],
            lambda h: Step(h["a"][-1], h["b"][-1], ()),
            lambda h: collections.OrderedDict(y=h["a"][-1], x=h["b"][-1]),
        ],
    )
    def test_columns_are_stored_in_flat_order(self, client, writer, nest):
        for step in range(2):
            writer.append({"a": step, "b": -step})
        for _ in range(2):
            writer.create_item("table", 1.0, nest(writer.history))
        writer.flush()
        expected = [values(column) for column in tree.flatten(nest(writer.history))]
        assert sampled(client, count=2) == [expected] * 2


class TestFlushAndEnd:
    def test_end_episode_that_would_block_changes_nothing(self, client, writer):
        writer.append(1)
        for _ in range(3):
            writer.create_item("queue", 1.0, writer.history[-1])
        with pytest.raises(reverb.DeadlineExceededError):
            writer.end_episode(timeout_ms=0)
        assert (writer.episode_steps, len(writer.history)) == (1, 1)
        client.reset("queue")
        writer.end_episode()
        assert (writer.episode_steps, len(writer.history)) == (0, 0)

    def test_an_old_option_is_accepted(self, client):
        client.trajectory_writer(num_keep_alive_refs=1, get_signature_timeout_ms=None).close()


def test_a_dropped_writer_abandons_its_items(client):
    writer = client.trajectory_writer(5)
    writer.configure((), num_keep_alive_refs=5, max_chunk_length=5)
    writer.append(1)
    writer.create_item("table", 1.0, writer.history[-1])
    del writer
    gc.collect()
    assert client.server_info()["table"].current_size == 0


@pytest.mark.parametrize(
    ("rows", "is_told"), [((4, 3), True), ((3, 3), False), ((4, 1), False), ((2, 1), False)]
)
def test_a_row_more_in_one_column_is_told_once(serve, capfd, rows, is_told):
    client = serve(testing.table("t"))
    with client.trajectory_writer(4) as writer:
        for step in range(8):
            writer.append({"obs": step, "action": step})
            if step >= 3:
                lengths = dict(zip(("action", "obs"), reversed(rows), strict=True))
                columns = {name: writer.history[name][-n:] for name, n in lengths.items()}
                writer.create_item("t", 1.0, columns)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == is_told
    assert all("items have 4 rows in column 1 and 3 in column 0: row i" in it for it in lines)
