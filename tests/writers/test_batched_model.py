# SPDX-License-Identifier: Apache-2.0
"""A batched writer does what as many single writers do, whatever the masks and the episodes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError, ReverbError
from support.examples import fast_and_thorough
from support.hosts import on_both_hosts

LISTS = st.lists(st.integers(-4, 3), min_size=1, max_size=5)

INDICES = st.one_of(
    st.integers(-4, -1),
    LISTS,
    LISTS.map(np.array),
    st.builds(
        slice,
        st.one_of(st.none(), st.integers(-4, -1)),
        st.one_of(st.none(), st.integers(-3, -1)),
        st.sampled_from([None, 1, 2]),
    ),
)


class Singles:
    """One trajectory writer for each environment, with the interface of a batched writer."""

    def __init__(self, client, batch_size, refs):
        self.writers = [client.trajectory_writer(refs) for _ in range(batch_size)]

    def configure(self, path, **options):
        for writer in self.writers:
            writer.configure(path, **options)

    def append(self, data, partial_step, where=None):
        for i, writer in enumerate(self.writers):
            if where is not None and not where[i]:
                continue
            row = {name: None if leaf is None else leaf[i] for name, leaf in data.items()}
            writer.append(row, partial_step=partial_step)

    def create_items(self, table, priorities, indices, where):
        items = []
        for i, writer in enumerate(self.writers):
            if where is not None and not where[i]:
                continue
            try:
                columns = [
                    writer.history[name][index.tolist() if isinstance(index, np.ndarray) else index]
                    for name, index in indices.items()
                ]
                complete = all(len(column) for column in columns)
            except (ReverbError, IndexError):
                complete = False
            if complete:
                items.append((writer, priorities[i], columns))
            elif where is not None:
                raise InvalidArgumentError(f"environment {i}")
        for writer, priority, columns in items:
            writer.create_item(table, priority, columns)
            writer.flush()
        return len(items)

    def end_episode(self, where, clear_buffers):
        for i, writer in enumerate(self.writers):
            if where is None or where[i]:
                writer.end_episode(clear_buffers)

    @property
    def episode_steps(self):
        return [writer.episode_steps for writer in self.writers]

    def close(self):
        for writer in self.writers:
            writer.close()


def all_items(client, table):
    found = []
    while client.server_info()[table].current_size:
        (sample,) = client.sample(table, emit_timesteps=False)
        data = [(str(column.dtype), column.tolist()) for column in sample.data]
        found.append((data, sample.info.priority))
        client.mutate_priorities(table, deletes=[sample.info.key])
    return found


@fast_and_thorough(60, 3_000)
@on_both_hosts
def test_it_does_what_single_writers_do(host, max_examples):
    @settings(max_examples=max_examples)
    @given(batch_size=st.integers(1, 4), refs=st.integers(1, 5), data=st.data())
    def check(batch_size, refs, data):
        with reverb.Server([testing.table("batched"), testing.table("single")]) as server:
            client = reverb.Client(f"{host}:{server.port}", connect_timeout_s=20)
            batched = client.batched_trajectory_writer(batch_size, refs)
            singles = Singles(client, batch_size, refs)
            compare(data, client, batched, singles, batch_size, refs)
            batched.close()
            singles.close()

    check()


@pytest.mark.parametrize("dtype", [None, np.int8, np.int64, np.uint16, np.dtype(">i4")])
def test_64_environments_stack_frames_as_single_writers_do(dtype):
    """Frame stacking at the beginning of an episode repeats its first step."""
    with testing.server([testing.table("batched"), testing.table("single")]) as client:
        batched = client.batched_trajectory_writer(64, 4)
        singles = Singles(client, 64, 4)
        frames = np.arange(64 * 6).reshape(64, 6).astype(np.uint8)
        for number in range(6):
            step = {"x": frames[:, number]}
            batched.append(step)
            singles.append(step, False)
            indices = [max(number - back, 0) for back in (2, 1, 0)]
            if number >= 4 and dtype != np.uint16:  # The first steps have left the history.
                indices = [at - number - 1 for at in indices]
            index = indices if dtype is None else np.array(indices, dtype)
            column = batched.history["x"][index]
            stacked = frames[:, [max(number - back, 0) for back in (2, 1, 0)]]
            assert (column.shape, len(column), column.is_squeezed) == ((64, 3), 3, False)
            np.testing.assert_array_equal(column.numpy(), stacked)
            priorities = [float(number)] * 64
            where = [i % 3 != number % 3 for i in range(64)]
            made = batched.create_items("batched", priorities, {"x": column}, where=where)
            assert made == singles.create_items("single", priorities, {"x": indices}, where)
        batched.flush()
        assert all_items(client, "batched") == all_items(client, "single")


def compare(data, client, batched, singles, batch_size, refs):
    masks = st.lists(st.booleans(), min_size=batch_size, max_size=batch_size)
    if data.draw(st.booleans(), "configure"):
        length = data.draw(st.one_of(st.none(), st.integers(1, refs)), "chunk length")
        for writer in (batched, singles):
            writer.configure(("x",), num_keep_alive_refs=refs, max_chunk_length=length)
    both_parts = {"x": np.zeros(batch_size, np.int64), "y": np.zeros((batch_size, 2), np.float32)}
    batched.append(both_parts)
    singles.append(both_parts, False)
    value = 0
    for _ in range(data.draw(st.integers(1, 12), "calls")):
        kind = data.draw(st.sampled_from(["append", "append", "parts", "items", "end"]))
        if kind in ("append", "parts"):
            value += 1
            rows = np.arange(batch_size) * 1000 + value
            step = {"x": rows, "y": np.stack([rows, -rows], 1).astype(np.float32)}
            if kind == "append" and data.draw(st.booleans(), "without y"):
                step["y"] = None
            where = data.draw(st.one_of(st.none(), st.none(), masks), "where")
            for part in [{"x": step["x"]}, {"y": step["y"]}] if kind == "parts" else [step]:
                last = kind == "append" or "y" in part
                batched.append(part, partial_step=not last, where=where)
                singles.append(part, not last, where)
        elif kind == "end":
            where = data.draw(st.one_of(st.none(), masks), "where")
            clear = data.draw(st.booleans(), "clear")
            batched.flush()
            batched.end_episode(where, clear_buffers=clear)
            singles.end_episode(where, clear)
        else:
            where = data.draw(st.one_of(st.none(), masks), "where")
            priorities = [float(data.draw(st.integers(0, 9))) for _ in range(batch_size)]
            names = data.draw(st.sampled_from([["x"], ["y"], ["x", "y"]]), "columns")
            indices = {name: data.draw(INDICES, "index") for name in names}
            history = batched.history
            columns = [history[name][index] for name, index in indices.items()]
            try:
                expected = singles.create_items("single", priorities, indices, where)
            except InvalidArgumentError as error:
                with pytest.raises(InvalidArgumentError, match=f"(?i){error}"):
                    batched.create_items("batched", priorities, columns, where=where)
            else:
                assert expected == batched.create_items("batched", priorities, columns, where=where)
        assert batched.episode_steps.tolist() == singles.episode_steps
    batched.flush()
    infos = client.server_info()
    assert infos["batched"].num_episodes == infos["single"].num_episodes
    assert all_items(client, "batched") == all_items(client, "single")
