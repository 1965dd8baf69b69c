# SPDX-License-Identifier: Apache-2.0
"""`TFClient`, eagerly, in functions, in sessions and under a strategy."""

import re
import threading

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import errors, testing


@pytest.fixture
def client(serve):
    """A client of a server whose table gives every item once, in order."""
    return serve(testing.table(max_times_sampled=1), reverb.Table.queue("full", 1))


@pytest.fixture
def tf_client(client):
    return reverb.TFClient(client.server_address)


@pytest.fixture(params=["eager", "function"])
def run(request):
    """Calls a function, eagerly or as a `tf.function`."""

    def run(call):
        def without_operations():
            result = call()
            return None if isinstance(result, tf.Operation) else result

        return call() if request.param == "eager" else tf.function(without_operations)()

    return run


def doubles(*values):
    return tf.constant(values, tf.float64)


def test_names_of_the_original(client):
    tf_client = reverb.TFClient(client.server_address, "shared", name="mine")
    assert tf_client.server_address == client.server_address
    assert tf_client._server_address == client.server_address


def test_max_priority_is_that_of_the_table(serve, run):
    client = serve(testing.table(sampler=reverb.selectors.Prioritized(1.0)))
    client.insert([np.int64(1)], {"table": 7.0})
    tf_client = reverb.TFClient(client.server_address)
    largest = doubles(reverb.MAX_PRIORITY)
    run(lambda: tf_client.insert([tf.constant(2, tf.int64)], tf.constant(["table"]), largest))
    assert [item.info.priority for item in client.scan("table")] == [7.0, 7.0]


def test_a_sample_is_the_first_step_of_an_item(client, tf_client, run):
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"x": np.full(2, step), "y": np.float32(step)})
        columns = {key: writer.history[key][-2:] for key in ("x", "y")}
        writer.create_item("table", 2.5, columns)
        writer.flush()
    info, data = run(lambda: tf_client.sample("table", {"y": [tf.float32], "x": tf.int64}))
    assert isinstance(info, reverb.SampleInfo)
    assert [field.dtype for field in info] == list(reverb.SampleInfo.tf_dtypes())
    assert [float(field) for field in info[1:]] == [1.0, 1.0, 2.5, 1.0]
    assert data["x"].numpy().tolist() == [1, 1]
    assert [leaf.numpy() for leaf in data["y"]] == [1.0]


def test_shapes_of_the_info_are_known_in_a_graph(tf_client):
    @tf.function
    def sample():
        info, data = tf_client.sample("table", [tf.int64])
        assert [field.shape.rank for field in info] == [0] * 5
        assert data[0].shape.rank is None
        return info

    sample.get_concrete_function()


def test_inserted_steps_are_items(client, tf_client, run):
    data = [tf.constant([1.5, 2.5]), tf.constant("text"), tf.constant(7, tf.uint8)]
    run(lambda: tf_client.insert(data, tf.constant(["table", "full"]), doubles(0.5, 2.0)))
    for table, priority in {"table": 0.5, "full": 2.0}.items():
        sample = next(client.sample(table, emit_timesteps=False))
        assert sample.info.priority == priority
        assert [column.tolist() for column in sample.data] == [[[1.5, 2.5]], [b"text"], [7]]


def test_eagerly_nothing_is_returned_and_in_a_graph_an_operation(tf_client):
    arguments = ([tf.constant(1)], tf.constant(["table"]), doubles(1.0))
    assert tf_client.insert(*arguments) is None
    assert tf_client.update_priorities("table", tf.constant([1], tf.uint64), doubles(1.0)) is None
    with tf.Graph().as_default():
        operation = tf_client.insert([tf.constant(1)], tf.constant(["table"]), doubles(1.0))
        assert isinstance(operation, tf.Operation)


def test_updated_priorities_count(serve, run):
    client = serve(testing.table(sampler=reverb.selectors.Prioritized(1.0)))
    tf_client = reverb.TFClient(client.server_address)
    client.insert([np.int64(1)], {"table": 1.0})
    info = next(client.sample("table"))[0].info
    keys = tf.constant([info.key, 12345], tf.uint64)
    run(lambda: tf_client.update_priorities("table", keys, doubles(4.0, 9.0)))
    assert next(client.sample("table"))[0].info.priority == 4.0


ARGUMENTS = {
    "tables dtype": (
        [1], [1.0], "tables must be a string tensor of rank 1, got int32 of shape (1,)",
    ),
    "tables rank": ("a", [1.0], "tables must be a string tensor of rank 1, got string of shape ()"),
    "priorities dtype": (
        ["a"], np.float32([1.0]),
        "priorities must be a float64 tensor of rank 1, got float32 of shape (1,)",
    ),
    "priorities rank": (
        ["a"], 1.0, "priorities must be a float64 tensor of rank 1, got float64 of shape ()",
    ),
    "shapes": (
        ["a"], [1.0, 2.0], "priorities and tables must have the same shape, got (2,) and (1,)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_insert_are_checked(tf_client, name, error_says):
    tables, priorities, text = ARGUMENTS[name]
    if not isinstance(priorities, np.ndarray):
        priorities = np.float64(priorities)
    error_says(
        lambda: tf_client.insert([tf.constant(1)], tf.constant(tables), tf.constant(priorities)),
        errors.InvalidArgumentError,
        text,
    )


def test_lists_of_python_will_do(client, tf_client):
    tf_client.insert([1, 2.5], ["table"], [1.0])
    assert [int(x) for x in next(client.sample("table"))[0].data] == [1, 2]


def test_an_unknown_table(tf_client, run):
    with pytest.raises(tf.errors.NotFoundError, match="nope"):
        run(lambda: tf_client.sample("nope", [tf.int64]))
    with pytest.raises(tf.errors.NotFoundError, match="nope"):
        run(lambda: tf_client.update_priorities("nope", tf.constant([1], tf.uint64), doubles(1.0)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="nope"):
        run(lambda: tf_client.insert([tf.constant(1)], tf.constant(["nope"]), doubles(1.0)))


def test_priorities_and_keys_must_fit(tf_client, run):
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(
            lambda: tf_client.update_priorities("table", tf.constant([1, 2], tf.uint64), doubles(1))
        )
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(lambda: tf_client.update_priorities("table", tf.constant(1, tf.uint64), np.float64(1)))
    with pytest.raises(ValueError, match="uint64"):
        run(lambda: tf_client.update_priorities("table", tf.constant([1], tf.int64), doubles(1.0)))
    with pytest.raises(ValueError, match=r"double|float64"):
        run(lambda: tf_client.update_priorities("table", [1], tf.constant([1.0], tf.float32)))


def test_dtypes_that_differ_are_refused(client, tf_client, run):
    for _ in range(2):
        client.insert([np.int64(1)], {"table": 1.0})
    # In a graph TensorFlow calls it an internal error, of the original too.
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.InternalError)) as error:
        run(lambda: tf_client.sample("table", [tf.float32]))
    assert "column 0 holds int64, got float" in str(error.value)
    is_eager = bool(run(lambda: tf.constant(tf.executing_eagerly())))
    expected = tf.errors.InvalidArgumentError if is_eager else tf.errors.InternalError
    assert type(error.value) is expected
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"1|2"):
        run(lambda: tf_client.sample("table", [tf.int64, tf.int64]))


ONE_STRING = {
    "scalar": lambda: tf.constant("table"),
    "vector": lambda: tf.constant(["table"]),
    "matrix": lambda: tf.constant([["table"]]),
    "list": lambda: ["table"],
    "array": lambda: np.array(["table"]),
    "bytes": lambda: b"table",
}


@pytest.mark.parametrize("name", ONE_STRING)
def test_the_name_of_a_table_may_be_a_tensor(client, tf_client, run, name):
    table = ONE_STRING[name]
    run(lambda: tf_client.insert([tf.constant(3)], tf.reshape(table(), [1]), doubles(1.0)))
    key = next(client.scan("table")).info.key
    run(lambda: tf_client.update_priorities(table(), tf.constant([key], tf.uint64), doubles(5.0)))
    info, data = run(lambda: tf_client.sample(table(), [tf.int32]))
    assert (float(info.priority), int(data[0])) == (5.0, 3)


@pytest.mark.parametrize("names", [[], ["table", "full"], [["table", "full"]]])
def test_several_names_of_tables_are_refused(tf_client, run, names):
    shape = str(list(np.shape(names))).replace(" ", "")
    text = re.escape(f"table must be one string, got dtype string and shape {shape}")
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run(lambda: tf_client.sample(tf.constant(names, tf.string), [tf.int64]).data)
    keys = np.uint64([1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run(
            lambda: tf_client.update_priorities(
                tf.constant(names, tf.string), tf.constant(keys), doubles(1.0)
            )
        )


def test_errors_of_arguments_keep_their_class_in_a_function(tf_client, run):
    with pytest.raises(errors.InvalidArgumentError, match="tables must be a string tensor"):
        run(lambda: tf_client.insert([tf.constant(1)], tf.constant("table"), doubles(1.0)))


def test_data_that_differ_from_the_signature_are_refused(serve, run):
    client = serve(testing.table(signature=[tf.TensorSpec([3], tf.float32, "x")]))
    tf_client = reverb.TFClient(client.server_address)
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(lambda: tf_client.insert([tf.zeros([4])], tf.constant(["table"]), doubles(1.0)))
    run(lambda: tf_client.insert([tf.zeros([3])], tf.constant(["table"]), doubles(1.0)))


def test_a_sample_is_waited_for(client, tf_client, run, background):
    call = background(run, lambda: tf_client.sample("table", [tf.int64]).data[0])
    threading.Event().wait(0.3)
    assert call.running
    client.insert([np.int64(5)], {"table": 1.0})
    assert int(call.result()) == 5


def test_an_insert_is_waited_for(client, tf_client, run, background, until):
    client.insert([np.int64(1)], {"full": 1.0})
    call = background(
        run, lambda: tf_client.insert([tf.constant(2)], tf.constant(["full"]), doubles(1.0))
    )
    threading.Event().wait(0.3)
    assert call.running
    client.sample_batch("full", 1)
    call.result()
    assert next(client.sample("full"))[0].data[0] == 2


def test_calls_of_a_function_are_made_in_order(client, tf_client):
    @tf.function
    def there_and_back():
        total = tf.constant(0, tf.int64)
        for value in tf.range(5, dtype=tf.int64):
            tf_client.insert([value], tf.constant(["table"]), doubles(1.0))
            total = total * 10 + tf.ensure_shape(tf_client.sample("table", [tf.int64]).data[0], [])
        return total

    assert int(there_and_back()) == 1234


def test_under_a_strategy(client, tf_client):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    @tf.function
    def step():
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            tf_client.insert([number], tf.constant(["table"]), doubles(1.0))
            return tf_client.sample("table", [tf.int32]).data[0]

        return strategy.run(replica)

    found = strategy.experimental_local_results(step())
    assert sorted(int(x) for x in found) == [0, 1]


def test_a_saved_model_calls(client, tf_client, tmp_path):
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def there_and_back(value):
        tf_client.insert([value], tf.constant(["table"]), doubles(1.0))
        return tf_client.sample("table", [tf.int64]).data[0]

    module.there_and_back = there_and_back
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert int(loaded.there_and_back(tf.constant(6, tf.int64))) == 6


def test_many_threads_share_a_client(client, tf_client, background):
    def there():
        for value in range(20):
            tf_client.insert([tf.constant(value)], tf.constant(["table"]), doubles(1.0))

    def back():
        return sum(int(tf_client.sample("table", [tf.int32]).data[0]) for _ in range(20))

    calls = [background(function) for function in (there, back) * 3]
    assert sum(call.result() or 0 for call in calls) == 3 * sum(range(20))
