# SPDX-License-Identifier: Apache-2.0
"""A writer's history against lists: every way to index it, what is kept, and what has expired."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import errors, pybind, testing
from support.examples import fast_and_thorough

COLUMNS = ("a", "b")


class ModelHistory:
    """One list of steps; a column keeps its last few values."""

    def __init__(self, refs):
        self.refs = refs
        self.length = self.closed = 0
        self.is_open = False
        self.values = {column: {} for column in COLUMNS}
        self.episode_steps = 0

    def append(self, data, partial_step):
        step = self.closed
        for column, value in data.items():
            kept = self.values[column]
            kept[step] = value
            if len(kept) > self.refs[column]:
                del kept[min(kept)]
        self.is_open = partial_step
        if not partial_step:
            self.closed += 1
            self.episode_steps += 1

    def __len__(self):
        return self.closed + self.is_open

    def open_columns(self):
        return {column for column in COLUMNS if self.is_open and self.closed in self.values[column]}

    def end_episode(self, clear_buffers):
        self.closed = len(self)
        self.is_open = False
        if clear_buffers:
            self.closed = 0
            self.values = {column: {} for column in COLUMNS}
        self.episode_steps = 0

    def at(self, column, index):
        length = len(self)
        if index >= length:
            return IndexError
        return self.values[column].get(index + length if index < 0 else index, ValueError)

    def select(self, column, index):
        """The selected values, or the class of the error."""
        if isinstance(index, int):
            return self.at(column, index)
        if isinstance(index, list):
            found = [self.at(column, at) for at in index]
        else:
            length = len(self)
            if index.start is not None and index.start < -length:
                return ValueError
            start, stop, stride = index.indices(length)
            if index.start is None and index.stop is not None and stride > 0:
                # Without a start a slice begins with the oldest value that is kept.
                start = max(start, min(self.values[column], default=0))
            found = [self.values[column].get(at, ValueError) for at in range(start, stop, stride)]
        return next((value for value in found if isinstance(value, type)), found)


INDICES = st.integers(-12, 12)
BOUNDS = st.one_of(st.none(), INDICES)
SLICES = st.builds(slice, BOUNDS, BOUNDS, st.sampled_from([None, 1, 2, 3, -1, -2]))


@st.composite
def operations(draw):
    """Appends, whole or in parts, and ends of episodes."""
    kind = draw(st.sampled_from(["append"] * 6 + ["end"]))
    if kind == "end":
        return "end", draw(st.booleans())
    return "append", (draw(st.sets(st.sampled_from(COLUMNS))), draw(st.booleans()))


@pytest.fixture(scope="module")
def client():
    with testing.server() as made:
        yield made


@fast_and_thorough(200, 10_000)
def test_it_is_indexed_like_a_list(client, max_examples):
    @settings(max_examples=max_examples)
    @given(
        refs=st.integers(1, 6),
        configured=st.one_of(st.none(), st.integers(1, 6)),
        chunk_length=st.one_of(st.none(), st.integers(1, 6)),
        todo=st.lists(operations(), max_size=14),
        indices=st.lists(
            st.one_of(INDICES, SLICES, st.lists(INDICES, max_size=4)), min_size=8, max_size=8
        ),
    )
    def check(refs, configured, chunk_length, todo, indices):
        writer = client.trajectory_writer(refs)
        model = ModelHistory({"a": configured or refs, "b": refs})
        if configured:
            length = None if chunk_length is None else min(chunk_length, configured)
            writer.configure(("a",), num_keep_alive_refs=configured, max_chunk_length=length)
        # Both columns are there from the beginning.
        writer.append(dict.fromkeys(COLUMNS))
        model.append({}, False)
        value = 0
        for kind, argument in todo:
            if kind == "end":
                writer.end_episode(argument)
                model.end_episode(argument)
                continue
            columns, partial_step = argument
            data = {}
            for column in sorted(columns - model.open_columns()):
                data[column] = value = value + 1
            writer.append(data, partial_step=partial_step)
            model.append(data, partial_step)
        assert writer.episode_steps == model.episode_steps
        for column in COLUMNS:
            history = writer.history[column]
            assert len(history) == len(model)
            live = [None if ref is None else ref.numpy().item() for ref in history]
            assert live == [model.values[column].get(step) for step in range(len(model))]
            for index in indices:
                expected = model.select(column, index)
                if isinstance(expected, type):
                    with pytest.raises(expected):
                        _ = history[index]
                    continue
                selected = history[index]
                assert selected.is_squeezed == isinstance(index, int)
                if expected == []:
                    assert len(selected) == 0
                else:
                    assert selected.numpy().tolist() == expected

    check()


@fast_and_thorough(200, 10_000)
def test_what_was_taken_from_it_expires_with_it(client, max_examples):
    @settings(max_examples=max_examples)
    @given(
        refs=st.integers(1, 5),
        before=st.integers(1, 8),
        after=st.integers(0, 8),
        clear=st.sampled_from([None, False, True]),
        data=st.data(),
    )
    def check(refs, before, after, clear, data):
        writer = client.trajectory_writer(refs)
        for step in range(before):
            writer.append(step)
        length = data.draw(st.integers(1, min(refs, before)))
        column = writer.history[-length:]
        if clear is not None:
            writer.end_episode(clear)
        for step in range(after):
            writer.append(step)
        # The oldest of `length` values is gone after as many more as fill the rest of the history.
        expired = clear is True or length + after > refs
        assert next(ref.expired for ref in column) == expired
        if expired:
            with pytest.raises(errors.FailedPreconditionError, match="expired"):
                column.numpy()
            with pytest.raises(errors.InvalidArgumentError, match="has expired"):
                writer.create_item("table", 1.0, column)
        else:
            assert column.numpy().tolist() == list(range(before - length, before))

    check()


def test_an_item_keeps_what_the_history_forgets(serve):
    client = serve(testing.table())
    with client.trajectory_writer(2) as writer:
        writer.configure((), num_keep_alive_refs=2, max_chunk_length=2)
        for step in range(50):
            writer.append(step)
            if step:
                writer.create_item("table", 1.0, writer.history[-2:])
    (samples,) = client.sample("table", emit_timesteps=False)
    assert samples.data[0].tolist() == [0, 1]


@pytest.mark.parametrize("ended", [False, True])
def test_columns_of_two_writers_make_one_item(serve, ended):
    client = serve(testing.table())
    first, second = client.trajectory_writer(2), client.trajectory_writer(2)
    for step in range(2):
        first.append({"x": step})
        second.append({"y": [10.0 * step, 1.0]})
    if ended:
        second.end_episode(clear_buffers=False)
    trajectory = {"x": first.history["x"][:], "y": second.history["y"][0][-1]}
    first.create_item("table", 1.0, trajectory)
    first.flush()
    second.close()
    (sample,) = client.sample("table", emit_timesteps=False)
    assert [column.tolist() for column in sample.data] == [[0, 1], 10.0]


def test_references_have_the_import_paths_of_the_original(client):
    writer = client.trajectory_writer(2)
    for step in range(3):
        writer.append({"x": np.full(2, step, np.float32), "y": 1 if step == 1 else None})
    x, y = writer.history["x"], writer.history["y"]
    for column, values in ((x[-2:], [1, 2]), (x[-1], [2]), (x[[-1, -1]], [2, 2])):
        references = column._data_references
        assert isinstance(references, tuple)
        assert [ref.numpy().tolist() for ref in references] == [[v, v] for v in values]
        assert all(isinstance(ref, pybind.WeakCellRef) for ref in references)
        assert {(ref.expired, *ref.shape, ref.dtype) for ref in references} == {
            (False, 2, np.dtype(np.float32))
        }
        assert references[0].shape == [2]
    # From the oldest one that is kept on.
    assert [ref.numpy()[0] for ref in x._data_references] == [1, 2]
    assert [ref and ref.numpy() for ref in y._data_references] == [1, None]
    again = reverb.TrajectoryColumn(x[-2:]._data_references)
    assert again.numpy().tolist() == [[1, 1], [2, 2]]
    writer.end_episode()
    assert x._data_references == []
    assert again._data_references[0].expired


def test_configure_may_come_before_its_column(serve):
    client = serve(testing.table())
    writer = client.trajectory_writer(1)
    writer.configure(("late",), num_keep_alive_refs=4, max_chunk_length=None)
    writer.configure(("never",), num_keep_alive_refs=4, max_chunk_length=None)
    for step in range(4):
        writer.append({"early": step})
    for step in range(4):
        writer.append({"early": step, "late": step})
    assert writer.history["late"][-4:].numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="early"):
        _ = writer.history["early"][-2:]


def test_configure_may_come_again_between_chunks(serve):
    client = serve(testing.table())
    with client.trajectory_writer(2) as writer:
        writer.append(0)
        writer.create_item("table", 1.0, writer.history[-1:])
        writer.flush()
        writer.configure((), num_keep_alive_refs=5, max_chunk_length=5)
        for step in range(1, 6):
            writer.append(step)
        assert writer.history[-5:].numpy().tolist() == [1, 2, 3, 4, 5]


def test_a_column_tells_its_shape_and_dtype(serve):
    client = serve(testing.table())
    writer = client.trajectory_writer(2)
    for step in range(5):
        writer.append({"x": np.full((2, 3), step, np.float32), "y": str(step)})
        column = writer.history["x"]
        # All steps, also those that items may not refer to any more.
        assert column.shape == (len(column), 2, 3) == (step + 1, 2, 3)
        assert column.dtype == np.float32
        assert writer.history["y"].shape == (step + 1,)
    column = writer.history["x"]
    writer.end_episode()
    assert column.shape == (0, 2, 3)
    assert len(column) == 0
    with pytest.raises(TypeError, match="must be TrajectoryColumn objects"):
        writer.create_item("table", 1.0, {"x": column})


def test_a_batched_column_tells_its_shape_and_dtype(serve):
    client = serve(testing.table())
    writer = client.batched_trajectory_writer(3, 2)
    writer.append({"x": np.zeros((3, 2), np.float32)}, partial_step=True)
    writer.append({"y": None})
    for attribute in ("shape", "dtype"):
        with pytest.raises(errors.FailedPreconditionError, match=r"Column \('y',\) has no value"):
            getattr(writer.history["y"], attribute)
    for steps in range(2, 5):
        writer.append({"x": np.zeros((3, 2), np.float32), "y": np.array(["a", "b", "c"])})
        assert writer.history["x"].shape == (3, steps, 2)
        assert writer.history["x"].dtype == np.float32
        assert writer.history["y"].shape == (3, steps)
        assert writer.history["y"].dtype == object
    writer.end_episode(where=[True, False, True])
    # The steps of the environment that has the most.
    assert writer.history["x"].shape == (3, 4, 2)
    writer.append({"x": np.zeros((3, 2), np.float32)}, where=[True, False, False])
    assert writer.history["x"].shape == (3, len(writer.history["x"]), 2) == (3, 4, 2)
    writer.end_episode()
    assert writer.history["x"].shape == (3, 0, 2)
