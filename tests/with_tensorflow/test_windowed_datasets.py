# SPDX-License-Identifier: Apache-2.0
"""`TrajectoryDataset(window=)`: random steps of items, with shapes that are known."""

import re

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import errors, testing
from support.wire.scripted_server import ScriptedServer

LENGTHS = (3, 5, 9)
SIGNATURE = {
    "image": tf.TensorSpec([None, 2], tf.uint8),
    "step": tf.TensorSpec([None], tf.int64),
    "text": tf.TensorSpec([None], tf.string),
}
SHAPES = tf.nest.map_structure(lambda spec: spec.shape, SIGNATURE)
DTYPES = tf.nest.map_structure(lambda spec: spec.dtype, SIGNATURE)
ALL_WINDOWS = [
    reverb.Window(1),
    reverb.Window(2, before=1),
    reverb.Window(4, before=2, pad="left"),
    reverb.Window(5, pad="right"),
    reverb.Window(4, before=3, pad="both"),
]


def steps_of(number):
    """The columns of an item: each value follows from the number of the item and the step."""
    at = number * 100 + np.arange(LENGTHS[number])
    return {
        "image": np.stack([at % 250, at % 7], axis=1).astype(np.uint8),
        "step": at,
        "text": np.array([str(it).encode() for it in at], object),
    }


@pytest.fixture
def client(serve):
    sampler = reverb.selectors.Uniform()
    client = serve(testing.table("t", sampler=sampler, signature=SIGNATURE, seed=3))
    for number in range(len(LENGTHS)):
        client.insert_sequence(steps_of(number), {"t": 1.0})
    return client


def dataset(client, window, table="t", **options):
    options = {"max_in_flight_samples_per_worker": 8} | options
    return reverb.TrajectoryDataset.from_table_signature(
        client.server_address, table, window=window, **options
    )


def check(info, data, window):
    """Checks one element with slices of NumPy; returns its item, and its first step."""
    start, mask = int(info.window_start), np.asarray(info.window_mask)
    number = int(data["step"][window.before]) // 100
    length, places = LENGTHS[number], start + np.arange(window.num_steps)
    found = [
        at
        for at in range(length)
        if (window.pads_left or at >= window.before)
        and (window.pads_right or at + window.length <= length)
    ]
    assert start + window.before in found
    assert int(info.num_windows) == len(found)
    np.testing.assert_array_equal(mask, (places >= 0) & (places < length))
    for name, column in steps_of(number).items():
        expected = column[places.clip(0, length - 1)]
        np.testing.assert_array_equal(np.asarray(data[name]), expected, err_msg=name)
    return number, start


def expected_specs(window, *leading):
    """The specs of elements, or with a leading dimension of batches."""

    def spec(dtype, *shape):
        return tf.TensorSpec([*leading, *shape], dtype)

    steps = window.num_steps
    of_window = (spec(tf.int32), spec(tf.int32), spec(tf.bool, steps))
    info = reverb.WindowInfo(*map(spec, reverb.SampleInfo.tf_dtypes()), *of_window)
    data = {name: spec(it.dtype, steps, *it.shape[1:]) for name, it in SIGNATURE.items()}
    return reverb.ReplaySample(info, data)


@pytest.mark.parametrize("window", ALL_WINDOWS, ids=repr)
def test_an_element_is_a_window_of_an_item(client, window):
    elements = dataset(client, window)
    assert elements.element_spec == expected_specs(window)
    found = set()
    for sample in elements.take(150):
        assert isinstance(sample.info, reverb.WindowInfo)
        assert sample.info.window_mask.shape == [window.num_steps]
        found.add(check(*sample, window))
    # There are at most 17 windows, each with a probability of 1/27 or more.
    assert {number for number, _ in found} == {
        number for number, length in enumerate(LENGTHS) if window_fits(window, length)
    }
    assert len(found) > 3


def window_fits(window, length):
    return length >= (0 if window.pads_left else window.before) + (
        1 if window.pads_right else window.length
    )


@pytest.mark.parametrize("window", ALL_WINDOWS, ids=repr)
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_batches_have_static_shapes(client, window, drop_remainder):
    batches = dataset(client, window, max_samples=20).batch(8, drop_remainder=drop_remainder)
    assert batches.element_spec == expected_specs(window, 8 if drop_remainder else None)
    sizes = []
    for info, data in batches:
        sizes.append(len(info.key))
        assert info.window_mask.shape == [sizes[-1], window.num_steps]
        for row in range(sizes[-1]):
            check(*tf.nest.map_structure(lambda leaf, row=row: leaf[row], (info, data)), window)
    assert sizes == ([8, 8] if drop_remainder else [8, 8, 4])


def test_unknown_first_dimensions_are_those_of_the_window(client):
    for shapes in (SHAPES, {"image": [3, 2], "step": [3], "text": None}):
        elements = reverb.TrajectoryDataset(
            client.server_address,
            "t",
            DTYPES,
            tf.nest.map_structure(tf.TensorShape, SHAPES)
            if shapes is SHAPES
            else {name: tf.TensorShape(shape) for name, shape in shapes.items()},
            4,
            max_samples=5,
            window=reverb.Window(2, before=1),
        )
        assert elements.element_spec.data["image"].shape == [3, 2]
        assert len([check(*sample, reverb.Window(2, before=1)) for sample in elements]) == 5


def test_a_value_of_the_item_comes_whole(serve):
    """Its first dimension is fixed by the signature, or open."""
    signature = {
        "goal": tf.TensorSpec([3], tf.float32),
        "name": tf.TensorSpec([None], tf.string),
        "step": tf.TensorSpec([20], tf.int64),
    }
    client = serve(testing.table("t", signature=signature))
    with client.trajectory_writer(20) as writer:
        for step in range(20):
            name = np.array([b"a", b"b"])
            writer.append({"step": step, "goal": np.ones(3, np.float32), "name": name})
        item = {name: writer.history[name][-1] for name in ("goal", "name")}
        writer.create_item("t", 1.0, item | {"step": writer.history["step"][-20:]})
    elements = reverb.TrajectoryDataset(
        client.server_address,
        "t",
        {"goal": tf.float32, "name": tf.string, "step": tf.int64},
        {"goal": tf.TensorShape([3]), "name": tf.TensorShape(None), "step": tf.TensorShape([None])},
        1,
        window=reverb.Window(4),
    )
    info, data = next(iter(elements))
    assert data["goal"].numpy().tolist() == [1, 1, 1]
    assert data["name"].numpy().tolist() == [b"a", b"b"]
    assert data["step"].numpy().tolist() == list(
        range(int(info.window_start), info.window_start + 4)
    )
    assert int(info.num_windows) == 17


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ([4, 2], "Requested incompatible tensor at flattened index 0"),  # Not the window's length.
        ([3, 5], "Requested incompatible tensor at flattened index 0"),
        ([3], "Requested incompatible tensor at flattened index 0"),
        ([], "Requested incompatible tensor at flattened index 0"),
    ],
)
def test_shapes_are_compared_with_the_signature_without_time(serve, shape, says):
    signature = [tf.TensorSpec([9, 2], tf.int64)]
    client = serve(testing.table("t", signature=signature))
    options = {"max_in_flight_samples_per_worker": 1, "window": reverb.Window(3)}

    def elements(shape):
        shapes = [tf.TensorShape(shape)]
        return reverb.TrajectoryDataset(client.server_address, "t", [tf.int64], shapes, **options)

    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(says)):
        iter(elements(shape))
    client.insert_sequence([np.zeros((9, 2), int)], {"t": 1.0})
    # The shape of the whole item may be that of a value, and is compared with the item.
    with pytest.raises(tf.errors.InvalidArgumentError, match="Received incompatible tensor"):
        next(iter(elements([9, 2])))
    for right in ([3, 2], [None, 2], [3, None], None):
        assert next(iter(elements(right))).data[0].shape == [3, 2]


def test_a_signature_with_a_fixed_length_needs_shapes(serve, error_says):
    signature = {"a": {"b": tf.TensorSpec([9, 2], tf.int64)}}
    client = serve(testing.table("t", signature=signature))
    error_says(
        lambda: dataset(client, reverb.Window(3)),
        errors.InvalidArgumentError,
        f"Table t at {client.server_address} has a signature whose column a/b has a fixed first "
        "dimension, (9, 2). With a window this may be a number of steps, or belong to a single "
        "value. Give the dtypes and shapes of windows to TrajectoryDataset(...) instead",
    )
    assert dataset(client, None).element_spec.data["a"]["b"].shape == [9, 2]


def test_arguments_that_are_no_windows(client, error_says):
    error_says(lambda: dataset(client, 3), TypeError, "window must be a reverb.Window, got int")
    error_says(
        lambda: dataset(client, reverb.Window(3, spans={"step": (0, 1)})),
        errors.InvalidArgumentError,
        "window must have no spans in a TensorFlow dataset, got Window(3, spans={'step': (0, 1)}): "
        "take whole windows, and slice the columns in `map`",
    )
    with pytest.raises(TypeError, match="window"):
        reverb.TimestepDataset("localhost:1", "t", DTYPES, SHAPES, 1, window=reverb.Window(1))


def test_a_server_that_does_not_know_windows():
    server = ScriptedServer("t")
    try:
        elements = reverb.TrajectoryDataset(
            server.address, "t", [tf.int64], [tf.TensorShape([None])], 1, window=reverb.Window(3)
        )
        text = f"Server {server.address} (dm-reverb, or older) does not know windows"
        with pytest.raises(tf.errors.UnimplementedError, match=re.escape(text)):
            iter(elements)
        with pytest.raises(tf.errors.UnimplementedError, match=re.escape(text)):
            next(iter(elements.map(lambda sample: sample)))
    finally:
        server.stop()


@pytest.mark.parametrize("batch_size", [None, 2])
def test_no_window_is_possible(serve, batch_size):
    client = serve(testing.table("t", sampler=reverb.selectors.Uniform(), max_size=1))
    client.insert_sequence([np.arange(5)], {"t": 1.0})
    elements = reverb.TrajectoryDataset(
        client.server_address,
        "t",
        [tf.int64],
        [tf.TensorShape([None])],
        1,
        batch_size=batch_size,
        window=reverb.Window(6),
    )
    text = "No item of table t has a window of 6 steps; the longest has 5."
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(text)):
        next(iter(elements))


def test_a_dataset_waits_for_an_item_with_a_window(serve):
    client = serve(testing.table("t", sampler=reverb.selectors.Uniform()))
    client.insert_sequence([np.arange(5)], {"t": 1.0})

    def elements(**options):
        return reverb.TrajectoryDataset(
            client.server_address,
            "t",
            [tf.int64],
            [tf.TensorShape([None])],
            1,
            window=reverb.Window(6),
            **options,
        )

    assert list(elements(rate_limiter_timeout_ms=50)) == []
    waiting = iter(elements())
    client.insert_sequence([np.arange(100, 106)], {"t": 1.0})
    assert next(waiting).data[0].numpy().tolist() == list(range(100, 106))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_queue_gives_a_window_of_each_item(serve, batch_size):
    """Items that differ in length are in one batch, and count as one sample each."""
    client = serve(reverb.Table.queue("t", 10))
    lengths = [5, 2, 9, 3, 7, 4, 2, 11]
    for number, length in enumerate(lengths):
        client.insert_sequence([np.full((length, 1), number)], {"t": 1.0})
    elements = reverb.TrajectoryDataset(
        client.server_address,
        "t",
        [tf.int64],
        [tf.TensorShape([None, None])],  # Unknown beside time: the table checks whole batches.
        4,
        window=reverb.Window(2),
        max_samples=len(lengths),
    )
    if batch_size:
        elements = elements.batch(batch_size)
    elements = list(elements)
    counts = np.concatenate([np.ravel(sample.info.num_windows) for sample in elements])
    assert counts.tolist() == [length - 1 for length in lengths]
    rows = np.concatenate([np.reshape(sample.data[0], [-1, 2]) for sample in elements])
    assert rows.tolist() == [[number] * 2 for number in range(len(lengths))]
    assert client.server_info()["t"].current_size == 0


def test_inside_a_function_and_in_a_session(client):
    window = reverb.Window(2, before=1, pad="left")

    @tf.function
    def masks(address):
        result = tf.zeros([0, 3], tf.bool)
        elements = reverb.TrajectoryDataset(
            address, "t", DTYPES, SHAPES, 4, max_samples=20, window=window
        )
        for sample in elements.batch(5):
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(result, tf.TensorShape([None, 3]))]
            )
            assert sample.info.window_mask.shape == [None, 3]
            result = tf.concat([result, sample.info.window_mask], 0)
        return result

    found = masks(client.server_address).numpy()
    assert found.shape == (20, 3)
    assert found[:, 1:].all()
    assert 0 < (~found[:, 0]).sum() < 20
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        element = tf.compat.v1.data.make_one_shot_iterator(dataset(client, window)).get_next()
        for _ in range(10):
            check(*session.run(element), window)


def test_a_group_of_servers_samples_windows(start):
    places = []
    for number in range(len(LENGTHS)):
        server = start(testing.table("t", sampler=reverb.selectors.Uniform(over="steps")))
        places.append(f"127.1:{server.port}")
        reverb.Client(places[-1]).insert_sequence(steps_of(number), {"t": 1.0})
    window = reverb.Window(2)
    batches = reverb.TrajectoryDataset(
        "shards:///" + ",".join(places), "t", DTYPES, SHAPES, 8, max_samples=400, window=window
    ).batch(8)
    found = set()
    for batch in batches:
        for row in range(8):
            found.add(check(*tf.nest.map_structure(lambda leaf, row=row: leaf[row], batch), window))
    assert {number for number, _ in found} == {0, 1, 2}
