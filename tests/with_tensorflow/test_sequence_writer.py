# SPDX-License-Identifier: Apache-2.0
"""`TFSequenceWriter`, eagerly, in functions and in their loops."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import errors, testing

Step = collections.namedtuple("Step", ["observation", "reward"])


@pytest.fixture
def client(serve):
    """A client of a server whose tables give every item once, in order."""
    tables = [testing.table(name, max_times_sampled=1) for name in ("table", "other")]
    return serve(*tables)


@pytest.fixture(params=["eager", "function"])
def run(request):
    """Calls a function, eagerly or as a `tf.function`."""
    return lambda call: call() if request.param == "eager" else tf.function(call)()


def items(client, table="table"):
    """Takes what a table holds, oldest first: (columns as lists, dtypes, priority)."""
    count = client.server_info()[table].current_size
    samples = client.sample(table, count, emit_timesteps=False) if count else []
    return [
        (
            [column.tolist() for column in sample.data],
            [str(column.dtype) for column in sample.data],
            sample.info.priority,
        )
        for sample in samples
    ]


def values(client):
    """The first column of all items."""
    return [columns[0] for columns, _, _ in items(client)]


def test_it_writes_what_the_plain_writer_writes(client, run):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    steps = [
        Step({"b": rows + i, "a": np.array([b"x", b"y"])}, np.array([i, -i], np.int8))
        for i in range(5)
    ]
    with client.sequence_writer("other", 2, 2) as writer:
        for i, step in enumerate(steps):
            writer.append(step, is_last=[i == 2, False], priorities=[i, i + 0.5])
    with client.sequence_writer("table", 2, 2) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)

        def append():
            return [
                tf_writer.append(
                    tf.nest.map_structure(tf.constant, step),
                    tf.constant([i == 2, False]),
                    tf.constant([i, i + 0.5], tf.float32),
                )
                for i, step in enumerate(steps)
            ]

        counts = run(append)
    assert [int(count) for count in counts] == [0, 2, 2, 1, 2]
    assert all(count.dtype == tf.int64 and count.shape == [] for count in counts)
    assert items(client) == items(client, "other")


def test_what_is_no_tensor_has_the_dtype_of_numpy(client, run):
    with client.sequence_writer("table", 1) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)
        step = {"a": 1, "b": 2.5, "c": True, "d": "text", "e": np.float32([1])}
        assert int(run(lambda: tf_writer.append(step, is_last=False, priorities=3))) == 1
        writer.append(step)
    first, second = items(client)
    assert first == (
        [[1], [2.5], [True], [b"text"], [[1.0]]],
        ["int64", "float64", "bool", "object", "float32"],
        3.0,
    )
    assert first[:2] == second[:2]


def test_one_flag_and_one_priority_stand_for_all_rows(client, run):
    with client.sequence_writer("table", 1, 2) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)
        run(lambda: tf_writer.append({"x": tf.range(2)}, tf.constant(True), 2.0))
        assert writer.episode_steps.tolist() == [0, 0]
    assert [priority for _, _, priority in items(client)] == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["number", "tensor"])
def test_max_priority_is_that_of_the_table(serve, run, kind):
    client = serve(testing.table(sampler=reverb.selectors.Prioritized(1.0)))
    client.insert([np.float32(1)], {"table": 7.0})
    largest = reverb.MAX_PRIORITY
    if kind == "tensor":
        largest = tf.constant([1.0, largest], tf.float64)
    with client.sequence_writer("table", 1, 2) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)
        run(lambda: tf_writer.append(tf.constant([2.0, 3.0]), tf.constant(False), largest))
        writer.flush()
    expected = [7.0, 7.0, 7.0] if kind == "number" else [7.0, 1.0, 7.0]
    assert [item.info.priority for item in client.scan("table")] == expected


def test_steps_of_a_parallel_loop_are_appended_in_its_order(client):
    with client.sequence_writer("table", 2) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)

        def body(i):
            # Work that nothing else waits for, so that iterations could overtake each other.
            noise = tf.random.normal([100, 100])
            zero = tf.cast(0.0 * tf.reduce_sum(noise @ noise), tf.int32)
            tf_writer.append({"x": i + zero}, is_last=tf.equal(i, 30))
            return i + 1

        @tf.function
        def run():
            return tf.while_loop(lambda i: i < 60, body, [tf.constant(0)], parallel_iterations=10)

        run()
    assert values(client) == [[i, i + 1] for i in range(59) if i != 30]


def test_branches_and_loops_with_variables_keep_the_order_too(client):
    variable = tf.Variable(0)
    with client.sequence_writer("table", 1) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)

        def append(x):
            tf_writer.append({"x": x}, False)

        @tf.function
        def run(odd):
            append(tf.constant(100))
            for _ in tf.range(5):
                append(variable.assign_add(1))
            append(tf.constant(101))
            if odd:
                append(variable.assign_add(1))
            else:
                append(tf.constant(102))
            append(tf.constant(103))

        for _ in range(10):
            variable.assign(0)
            run(tf.constant(True))
            run(tf.constant(False))
    once = [100, 1, 2, 3, 4, 5, 101, 6, 103, 100, 7, 8, 9, 10, 11, 101, 102, 103]
    assert [x for (x,) in values(client)] == 10 * once


def test_two_of_one_writer_keep_the_order(client):
    with client.sequence_writer("table", 1) as writer:
        pair = [reverb.TFSequenceWriter(writer) for _ in range(2)]

        @tf.function
        def run():
            for i in range(20):
                pair[i % 2].append({"x": tf.constant(i)}, False)

        run()
    assert values(client) == [[i] for i in range(20)]


def test_python_and_graphs_use_one_writer(client):
    with client.sequence_writer("table", 2) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)
        append = tf.function(lambda x: tf_writer.append({"x": x}, False))
        writer.append({"x": np.int64(0)})
        append(tf.constant(1, tf.int64))
        tf_writer.append({"x": tf.constant(2, tf.int64)}, False)
        assert tf_writer.writer is writer
        assert writer.episode_steps == 3
        writer.end_episode()
        append(tf.constant(3, tf.int64))
        writer.append({"x": np.int64(4)})
    assert values(client) == [[0, 1], [1, 2], [3, 4]]


def test_whole_episodes(client):
    with client.sequence_writer("table", None, max_sequence_length=4) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)

        @tf.function
        def run(n):
            for i in tf.range(n):
                tf_writer.append({"x": i}, is_last=tf.equal(i % 3, 2))

        run(tf.constant(7))
        with pytest.raises(tf.errors.InvalidArgumentError, match="longer than max_sequence_length"):
            tf.function(
                lambda: [tf_writer.append({"x": tf.constant(i)}, False) for i in range(6)]
            )()
        assert writer.num_dropped_episodes == 1
    assert values(client) == [[0, 1, 2], [3, 4, 5]]


def test_a_dataset_may_append(client):
    with client.sequence_writer("table", 2) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)
        dataset = tf.data.Dataset.range(5).map(lambda x: tf_writer.append({"x": x}, False))
        assert [int(count) for count in dataset] == [0, 1, 1, 1, 1]
    assert values(client) == [[i, i + 1] for i in range(4)]


def test_graphs_of_sessions(client):
    with client.sequence_writer("table", 1) as writer, tf.Graph().as_default():
        count = reverb.TFSequenceWriter(writer).append({"x": tf.constant(7)}, False)
        with tf.compat.v1.Session() as session:
            assert session.run(count) == 1
    assert values(client) == [[7]]


def test_a_graph_does_not_keep_a_writer_open(client):
    writer = client.sequence_writer("table", 1)
    append = tf.function(reverb.TFSequenceWriter(writer).append)
    append({"x": tf.constant(0)}, False)
    writer.flush()
    writer.close()
    with pytest.raises(tf.errors.FailedPreconditionError, match="The writer is closed"):
        append({"x": tf.constant(0)}, False)


def test_a_server_that_goes_away_ends_the_function(start, connect):
    server = start(testing.table())
    client = connect(server, connect_timeout_s=0.2)
    writer = client.sequence_writer("table", 1)
    tf_writer = reverb.TFSequenceWriter(writer)
    append = tf.function(lambda: tf_writer.append({"x": tf.constant(0)}, False))
    append()
    writer.flush()
    server.stop()
    append()
    with pytest.raises(errors.UnavailableError, match="No server answered"):
        writer.flush()
    with pytest.raises(tf.errors.AbortedError, match="No server answered"):
        append()


def test_errors_name_the_column_when_the_op_runs(client, run):
    with client.sequence_writer("table", 2, 2) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)
        # The graph is made without a step to compare with.
        unknown = tf.function(
            lambda x: tf_writer.append({"observation": {"position": x}}, False),
            input_signature=[tf.TensorSpec(None, tf.float32)],
        )
        unknown(tf.zeros([2, 3]))
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"column observation/position must have dtype float and shape \[2,3\], got dtype "
            r"float and shape \[2,4\]",
        ):
            unknown(tf.zeros([2, 4]))
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"Column observation/position must have shape \[batch_size, ...\] with batch_size"
            r" = 2, got shape \[1,3\]",
        ):
            unknown(tf.zeros([1, 3]))
        nan = tf.constant([1.0, float("nan")], tf.float64)
        step = {"observation": {"position": tf.zeros([2, 3])}}
        with pytest.raises(tf.errors.InvalidArgumentError, match="got NaN for row 1"):
            run(lambda: tf_writer.append(step, False, nan))
        assert writer.episode_steps.tolist() == [1, 1]


TRACING = {
    "another dtype": (
        {"x": tf.zeros([2, 3], tf.float64)}, False, 1.0,
        errors.SignatureMismatchError,
        "column x must have dtype float32 and shape (3,) for each row, as in earlier steps, got "
        "dtype float64 and shape (3,)",
    ),
    "another shape": (
        {"x": tf.zeros([2, 4])}, False, 1.0,
        errors.SignatureMismatchError,
        "column x must have dtype float32 and shape (3,) for each row, as in earlier steps, got "
        "dtype float32 and shape (4,)",
    ),
    "another batch size": (
        {"x": tf.zeros([5, 3])}, False, 1.0,
        errors.InvalidArgumentError,
        "column x must have shape [batch_size, ...] with batch_size = 2, got shape (5, 3)",
    ),
    "no batch dimension": (
        {"x": tf.zeros([])}, False, 1.0,
        errors.InvalidArgumentError,
        "column x must have shape [batch_size, ...] with batch_size = 2, got shape ()",
    ),
    "other columns": (
        {"y": tf.zeros([2, 3])}, False, 1.0,
        errors.InvalidArgumentError,
        "data must have the columns of earlier steps, ['x'], got ['y']",
    ),
    "no columns": (
        {}, False, 1.0, errors.InvalidArgumentError, "data must have at least one leaf, got none",
    ),
    "rows of is_last": (
        {"x": tf.zeros([2, 3])}, [True], 1.0,
        errors.InvalidArgumentError,
        "is_last must have shape [2], one value for each row of the batch, or be one value for "
        "all, got shape (1,)",
    ),
    "dtype of is_last": (
        {"x": tf.zeros([2, 3])}, 1, 1.0, TypeError, "is_last must be bool, got dtype int64",
    ),
    "rows of priorities": (
        {"x": tf.zeros([2, 3])}, False, tf.ones([3]),
        errors.InvalidArgumentError,
        "priorities must have shape [2], one value for each row of the batch, or be one value for "
        "all, got shape (3,)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("seen", ["a step", "a graph"])
@pytest.mark.parametrize("name", TRACING)
def test_what_does_not_fit_is_said_while_the_graph_is_made(client, name, seen, error_says):
    step, is_last, priorities, kind, text = TRACING[name]
    writer = client.sequence_writer("table", 2, 2)
    tf_writer = reverb.TFSequenceWriter(writer)

    def append(*arguments):
        traced = tf.function(lambda: tf_writer.append(*arguments), autograph=False)
        return traced.get_concrete_function()

    if seen == "a step":
        writer.append({"x": np.zeros((2, 3), np.float32)})
    else:
        append({"x": tf.zeros([2, 3])}, False)
    error_says(lambda: append(step, is_last, priorities), kind, text)
    append({"x": tf.zeros([2, 3])}, False)
    writer.close()


def test_a_writer_that_outruns_its_connection_is_slowed_down(serve):
    client = serve(testing.table(max_size=3, max_times_sampled=1))
    with client.sequence_writer("table", 1) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)
        # More than can be on its way, and noise, which takes no less room when it is compressed.
        noise = tf.random.uniform([2_000_000])

        @tf.function
        def run(n):
            for i in tf.range(n):
                tf_writer.append({"x": noise + tf.cast(i, tf.float32)}, False)

        run(tf.constant(30))
    samples = client.sample("table", 3, emit_timesteps=False)
    assert [int(sample.data[0][0, 0]) for sample in samples] == [27, 28, 29]
