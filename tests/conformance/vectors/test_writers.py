# SPDX-License-Identifier: Apache-2.0
"""Conformance vectors of the trajectory writer and the structured writer (9 to 18, 20 and 29).

They use only the public interface of dm-reverb and hold for the released package too, except where
`PEER` says that this one differs on purpose.
"""

import contextlib
import gc

import numpy as np
import pytest

import reverb
from reverb import structured
from support.waiting import wait_until

# The released package has no version attribute.
PEER = not hasattr(reverb, "__version__")

Condition = structured.Condition


@contextlib.contextmanager
def serve(table):
    """Runs a server with one table and yields a client of it."""
    server = reverb.Server([table])
    try:
        yield reverb.Client(f"localhost:{server.port}")
    finally:
        server.stop()


def fifo_table():
    """Returns a table that keeps everything and gives each item out once, oldest first."""
    return reverb.Table.queue("table", 100)


def append_item(writer, value):
    """Appends one step and creates an item of it."""
    writer.append([np.asarray(value)])
    writer.create_item("table", 1.0, [writer.history[0][-1:]])


def drain(client, table):
    """Samples everything there is; an item is the list of its columns as Python values."""
    size = table.info.current_size
    if not size:
        return []
    samples = client.sample("table", size, emit_timesteps=False)
    return [[column.tolist() for column in sample.data] for sample in samples]


def run_structured(configs, episodes, *, clear_buffers=True):
    """Writes `episodes` with a structured writer and returns the items in their order."""
    table = fifo_table()
    with serve(table) as client:
        writer = client.structured_writer(configs)
        for index, steps in enumerate(episodes):
            if index:
                writer.end_episode(clear_buffers=clear_buffers)
            for step in steps:
                writer.append(step)
        writer.flush()
        return drain(client, table)


def config(structure, transform, conditions=(), **arguments):
    """Returns the configuration of one pattern that writes to the table."""
    pattern = structured.pattern_from_transform(structure, transform)
    return structured.create_config(pattern, "table", conditions, **arguments)


def test_vector_9_flush_arithmetic():
    table = reverb.Table.queue("table", 2)
    with serve(table) as client:
        writer = client.trajectory_writer(6)
        for value in range(6):
            append_item(writer, value)
        writer.flush(block_until_num_items=4)
        assert table.info.current_size == 2
        with pytest.raises(reverb.DeadlineExceededError):
            writer.flush(block_until_num_items=3, timeout_ms=100)
        with pytest.raises(reverb.DeadlineExceededError):
            writer.flush(timeout_ms=100)
        with pytest.raises(reverb.DeadlineExceededError):
            writer.end_episode(timeout_ms=0)
        # A call that timed out has changed nothing.
        assert writer.episode_steps == 6
        assert len(writer.history[0]) == 6
        assert [int(step.data[0]) for (step,) in client.sample("table", 6)] == list(range(6))
        writer.flush()
        writer.close()


def test_vector_10_an_item_without_its_chunk_delays_later_items():
    table = fifo_table()
    with serve(table) as client:
        writer = client.trajectory_writer(4)
        writer.configure(("a",), num_keep_alive_refs=4, max_chunk_length=4)
        writer.configure(("b",), num_keep_alive_refs=4, max_chunk_length=1)
        writer.append({"a": 1, "b": 2})
        writer.create_item("table", 1.0, {"a": writer.history["a"][-1:]})
        writer.create_item("table", 1.0, {"b": writer.history["b"][-1:]})
        writer.flush(block_until_num_items=2)
        assert table.info.current_size == 0
        writer.flush(block_until_num_items=1)
        wait_until(lambda: table.info.current_size == 2)
        assert drain(client, table) == [[[1]], [[2]]]
        writer.close()


def test_vector_11_a_deleted_trajectory_writer_drops_the_rest():
    table = fifo_table()
    with serve(table) as client:
        writer = _writer_with_one_pending_item(client)
        del writer
        gc.collect()
        assert table.info.current_size == 0


def test_vector_11_leaving_the_context_flushes_without_close():
    table = fifo_table()
    with serve(table) as client:
        with _writer_with_one_pending_item(client) as writer:
            assert table.info.current_size == 0
        assert table.info.current_size == 1
        append_item(writer, 2)
        writer.flush()
        assert drain(client, table) == [[[1]], [[2]]]
        writer.close()


def test_vector_11_a_deleted_structured_writer_inserts_the_rest():
    table = fifo_table()
    with serve(table) as client:
        writer = client.structured_writer([config([0], lambda step: [step[0][-1:]])])
        writer.append([np.asarray(3)])
        del writer
        gc.collect()
        wait_until(lambda: table.info.current_size == 1)
        assert drain(client, table) == [[[3]]]


def test_vector_11_deleted_structured_writers_keep_the_order():
    table = fifo_table()
    with serve(table) as client:
        for first in range(0, 60, 3):
            writer = client.structured_writer([config([0], lambda step: [step[0][-1:]])])
            for value in range(first, first + 3):
                writer.append([np.asarray(value)])
            del writer
            gc.collect()
            assert table.info.current_size == first + 3
        assert drain(client, table) == [[[value]] for value in range(60)]


def test_vector_12_another_error_in_the_body_still_flushes():
    table = fifo_table()
    with serve(table) as client:
        with (
            pytest.raises(ValueError, match="from the body"),
            _writer_with_one_pending_item(client) as writer,
        ):
            raise ValueError("from the body")
        assert table.info.current_size == 1
        writer.close()


@pytest.mark.parametrize("error", [reverb.ReverbError, reverb.DeadlineExceededError])
def test_vector_12_a_reverb_error_in_the_body_skips_the_flush(error):
    table = fifo_table()
    with serve(table) as client:
        with pytest.raises(error), _writer_with_one_pending_item(client) as writer:
            raise error("from the body")
        assert table.info.current_size == 0
        writer.close()


def test_vector_13_with_kept_buffers_items_span_episodes():
    table = fifo_table()
    with serve(table) as client:
        writer = client.trajectory_writer(3)
        writer.append([np.asarray(1)])
        writer.append([np.asarray(2)])
        writer.end_episode(clear_buffers=False)
        writer.append([np.asarray(3)])
        assert len(writer.history[0]) == 3
        assert writer.episode_steps == 1
        writer.create_item("table", 1.0, [writer.history[0][-3:]])
        writer.flush()
        assert table.info.num_episodes == 2
        assert drain(client, table) == [[[1, 2, 3]]]
        writer.close()


def test_vector_14_steps_since_applied_counts_across_episodes():
    configs = [config(0, lambda x: x[-1], [Condition.steps_since_applied() >= 2])]
    assert run_structured(configs, [[0, 1, 2], [10, 11, 12]]) == [[1], [10], [12]]


def test_vector_15_with_kept_buffers_patterns_span_episodes():
    episodes = [[0, 1], [10, 11]]
    three = [config(0, lambda x: x[-3:])]
    assert run_structured(three, episodes, clear_buffers=False) == [[[0, 1, 10]], [[1, 10, 11]]]
    two = [config(0, lambda x: x[-2:])]
    assert run_structured(two, episodes) == [[[0, 1]], [[10, 11]]]


def test_vector_16_partial_steps():
    structure = {"a": 0, "b": 0}
    both = config(structure, lambda step: {"x": step["a"][-1], "y": step["b"][-1]})
    only_a = config(structure, lambda step: {"x": step["a"][-1]})
    table = fifo_table()
    with serve(table) as client:
        writer = client.structured_writer([both, only_a])
        writer.append({"a": 0, "b": None}, partial_step=True)
        assert writer.step_is_open
        writer.append({"a": None, "b": 5})
        assert not writer.step_is_open
        writer.append({"a": 1, "b": 6})
        writer.flush()
        assert drain(client, table) == [[0], [0, 5], [1, 6], [1]]


def test_vector_17_a_pattern_waits_until_no_cell_is_missing():
    structure = {"a": 0, "b": 0}
    configs = [config(structure, lambda step: [step["a"][-2:]])]
    steps = [{"a": a, "b": 0} for a in (0, None, 2, 3)]
    assert run_structured(configs, [steps]) == [[[2, 3]]]


def test_vector_18_td_error():
    structure = {"a": 0.0, "b": 0.0}
    priority = structured.td_error(0.9, structure, lambda step: step["b"])
    table = fifo_table()
    with serve(table) as client:
        writer = client.structured_writer(
            [config(structure, lambda step: [step["b"][-2:]], priority=priority)]
        )
        for error in (1.0, -3.0, 2.0):
            writer.append({"a": 0.0, "b": error})
        writer.flush()
        samples = list(client.sample("table", 2, emit_timesteps=False))
    # 0.9 * max|e| + 0.1 * mean|e| over [1, -3] and over [-3, 2].
    assert [sample.info.priority for sample in samples] == pytest.approx([2.9, 2.95])
    assert [sample.data[0].tolist() for sample in samples] == [[1.0, -3.0], [-3.0, 2.0]]


def test_vector_18_without_the_column_the_priority_is_zero():
    structure = {"a": 0.0, "b": 0.0}
    priority = structured.td_error(0.9, structure, lambda step: step["b"])
    with serve(fifo_table()) as client:
        writer = client.structured_writer(
            [config(structure, lambda step: [step["a"][-1:]], priority=priority)]
        )
        writer.append({"a": 1.0, "b": 5.0})
        writer.flush()
        assert next(client.sample("table", 1, emit_timesteps=False)).info.priority == 0.0


def _leading(*transforms):
    """Returns the shape that `infer_signature` gives to patterns over one array of shape [3, 3]."""
    spec = {"x": np.zeros((3, 3), np.float32)}
    configs = [config(spec, lambda step, t=t: {"y": t(step["x"])}) for t in transforms]
    signature = structured.infer_signature(configs, spec)
    assert signature["y"].dtype == np.float32
    assert signature["y"].name == "y"
    return tuple(signature["y"].shape)


def test_vector_20_infer_signature_rounds_a_strided_length_up():
    assert _leading(lambda x: x[-8::2]) == (4, 3, 3)
    # Version 0.14 rounded down, so that its signature did not fit the items.
    assert _leading(lambda x: x[-7::2]) == ((3 if PEER else 4), 3, 3)


def test_vector_20_infer_signature_of_different_lengths():
    slices = (lambda x: x[-2:], lambda x: x[-2:], lambda x: x[-3:])
    assert _leading(*slices) == (None, 3, 3)


@pytest.fixture
def nested_writer():
    """A trajectory writer that has seen one step of a nest."""
    with serve(fifo_table()) as client:
        writer = client.trajectory_writer(2)
        writer.append({"scalar": 1, "nest": {"sub": 1.0, "sub_list": [1, 2, 3]}})
        yield writer
        writer.close()


def test_vector_29_wrong_dtype_names_the_path(nested_writer):
    expected = r"column \('scalar',\)\. Got double but expected int64"
    with pytest.raises(ValueError, match=expected):
        nested_writer.append({"scalar": 1.0, "nest": {"sub": 1.0, "sub_list": [1, 2, 3]}})


def test_vector_29_wrong_dtype_in_a_list_names_the_path(nested_writer):
    expected = r"column \('nest', 'sub_list', 1\)\. Got double but expected int64"
    with pytest.raises(ValueError, match=expected):
        nested_writer.append({"scalar": 1, "nest": {"sub": 1.0, "sub_list": [1, 2.0, 3]}})


def test_vector_29_wrong_shape_names_the_path(nested_writer):
    expected = (
        r"incompatible shape provided for column \('nest', 'sub'\)\. "
        r"Got \[2\] which is incompatible with \[\]"
    )
    with pytest.raises(ValueError, match=expected):
        nested_writer.append(
            {"scalar": 1, "nest": {"sub": np.asarray([1.0, 2.0]), "sub_list": [1, 2, 3]}}
        )


def test_vector_29_structured_writer_names_column_and_path():
    structure = {"a": 0, "b": 0}
    with serve(fifo_table()) as client:
        writer = client.structured_writer([config(structure, lambda s: [s["b"][-1], s["a"][-1]])])
        writer.append({"a": 1, "b": 2})
        writer.flush()
        with pytest.raises(ValueError, match=r"column \d+ \(path=\('b',\)\)\. Got double"):
            writer.append({"a": 1, "b": 2.0})


def _writer_with_one_pending_item(client):
    """Returns a writer whose only item waits for the rest of its chunk."""
    writer = client.trajectory_writer(5)
    writer.configure((0,), num_keep_alive_refs=5, max_chunk_length=5)
    append_item(writer, 1)
    return writer
