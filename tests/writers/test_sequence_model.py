# SPDX-License-Identifier: Apache-2.0
"""A sequence writer does what a few lines of Python do, whatever the episodes of its rows."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverb import errors, testing
from support.examples import fast_and_thorough


@pytest.fixture(scope="module")
def client(reach):
    tables = [testing.table(name, max_times_sampled=1) for name in ("table", "other")]
    with testing.server(tables) as made:
        yield reach(made)


def items(client, table="table"):
    """Takes what a table holds, oldest first: (columns as lists, priority)."""
    count = client.server_info()[table].current_size
    samples = client.sample(table, count, emit_timesteps=False) if count else []
    return [([c.tolist() for c in sample.data], sample.info.priority) for sample in samples]


@contextlib.contextmanager
def flushed(writer):
    """Hypothesis ends an example by an exception; its items must not arrive in the next one."""
    try:
        yield
    finally:
        writer.flush()


class Model:
    """A model of the writer's promises, in plain Python."""

    def __init__(self, length, stride, max_length, rows):
        self.length, self.stride, self.max_length = length, stride, max_length
        self.episodes = [[] for _ in range(rows)]
        self.items, self.num_dropped = [], 0

    def append(self, values, is_last, priorities):
        before, too_long = len(self.items), []
        for row, episode in enumerate(self.episodes):
            episode.append(values[row])
            if self.length is None:
                if len(episode) == self.max_length + 1:
                    too_long.append(row)
                elif is_last[row] and len(episode) <= self.max_length:
                    self.items.append((list(episode), priorities[row]))
            elif len(episode) >= self.length and not (len(episode) - self.length) % self.stride:
                self.items.append((episode[-self.length :], priorities[row]))
            if is_last[row]:
                episode.clear()
        self.num_dropped += len(too_long)
        return len(self.items) - before, too_long

    def end_episode(self, where):
        for episode, ends in zip(self.episodes, where, strict=True):
            if ends:
                episode.clear()


@fast_and_thorough(40, 2_000)
def test_it_does_what_the_model_does(client, max_examples):
    @settings(max_examples=max_examples)
    @given(
        rows=st.integers(1, 4),
        length=st.one_of(st.none(), st.integers(1, 5)),
        stride=st.integers(1, 4),
        drop=st.booleans(),
        data=st.data(),
    )
    def check(rows, length, stride, drop, data):
        client.reset("table")
        client.reset("other")
        stride = 1 if length is None else stride
        limits = {} if length else {"max_sequence_length": 4, "drop_long_episodes": drop}
        model = Model(length, stride, 4, rows)
        masks = st.lists(st.booleans(), min_size=rows, max_size=rows)
        writer = client.sequence_writer(
            ["table", "other"], length, rows, stride_length=stride, **limits
        )
        with writer, flushed(writer):
            for i in range(data.draw(st.integers(0, 15), "steps")):
                numbers = np.arange(rows) * 1000 + i
                is_last = data.draw(masks, "is_last")
                priorities = [float(data.draw(st.integers(0, 9))) for _ in range(rows)]
                step = {"x": numbers, "y": np.stack([numbers, -numbers], 1).astype(np.float32)}
                expected, too_long = model.append(numbers.tolist(), is_last, priorities)
                if too_long and not drop:
                    with pytest.raises(errors.InvalidArgumentError, match=r"is longer|are longer"):
                        writer.append(step, is_last=is_last, priorities=priorities)
                else:
                    created = writer.append(step, is_last=is_last, priorities=priorities)
                    assert created == 2 * expected
                if data.draw(st.integers(0, 9)) == 0:
                    where = data.draw(masks, "where")
                    writer.end_episode(where)
                    model.end_episode(where)
                steps = [len(episode) for episode in model.episodes]
                assert writer.episode_steps.tolist() == steps
            assert writer.num_dropped_episodes == model.num_dropped
        expected = [
            ([x, [[float(v), float(-v)] for v in x]], priority) for x, priority in model.items
        ]
        assert items(client) == items(client, "other") == expected

    check()
