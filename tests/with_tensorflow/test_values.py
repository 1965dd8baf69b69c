# SPDX-License-Identifier: Apache-2.0
"""All dtypes, strings of all lengths, and items that are not what the dataset declares."""

import re

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import reverb
from support.dtypes import EXTENSIONS

DTYPES = [
    np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64,
    np.uint8, np.uint16, np.uint32, np.uint64, np.bool_, np.complex64, np.complex128,
    *(getattr(ml_dtypes, name) for name in EXTENSIONS),
]  # fmt: skip
# Short strings live inside TensorFlow's string object, the others outside; 22 bytes is the limit.
LENGTHS = [0, 1, 21, 22, 23, 24, 255, 5000]


def dataset_of(client, array, family=reverb.TrajectoryDataset, **options):
    """A dataset of items with one column, a step like `array`."""
    leading = [1] if family is reverb.TrajectoryDataset else []
    dtype = tf.string if array.dtype.kind in "SUO" else tf.as_dtype(array.dtype)
    shape = tf.TensorShape([*leading, *array.shape])
    return family(client.server_address, "table", [dtype], [shape], 3, **options)


def skip_without_pipelines(dtype):
    """TensorFlow 2.21 has none of float8_e5m2."""
    try:
        list(tf.data.Dataset.from_tensors(tf.constant(np.zeros(1, dtype))).map(lambda x: x))
    except tf.errors.UnimplementedError as error:
        pytest.skip(f"this TensorFlow has no pipelines of the dtype: {error.message}")


@pytest.mark.parametrize("family", [reverb.TrajectoryDataset, reverb.TimestepDataset])
@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_dtype_comes_back(client, dtype, family, batch_size):
    skip_without_pipelines(dtype)
    arrays = [np.arange(6).reshape(2, 3).astype(dtype), np.ones((2, 3), dtype)]
    for array in arrays:
        client.insert([array], {"table": 1.0})
    dataset = dataset_of(client, arrays[0], family, max_samples=2, batch_size=batch_size)
    found = np.concatenate([x.data[0].numpy().reshape(-1, 2, 3) for x in dataset])
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, np.stack(arrays))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_tensors_of_every_dtype_are_written(client, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = tf.constant(array)
    with client.trajectory_writer(1) as writer:
        writer.append([tensor])
        writer.create_item("table", 1.0, [writer.history[0][-1:]])
    reverb.TFClient(client.server_address).insert([tensor], ["table"], np.ones(1))
    with client.sequence_writer("table", sequence_length=1) as writer:
        tf_writer = reverb.TFSequenceWriter(writer)
        tf.function(lambda: tf_writer.append([tensor], is_last=False))()
    samples = list(client.sample("table", 3, emit_timesteps=False))
    assert [sample.data[0].dtype for sample in samples] == 3 * [np.dtype(dtype)]
    assert [sample.data[0].tobytes() for sample in samples] == 3 * [array.tobytes()]


@pytest.mark.parametrize("batch_size", [None, 3])
def test_strings_of_all_lengths_come_back(client, batch_size):
    texts = [bytes([65 + i]) * length for i, length in enumerate(LENGTHS)]
    rows = np.array([texts, texts[::-1], [b"\0" * len(text) for text in texts]], dtype=object)
    for row in rows:
        client.insert([row], {"table": 1.0})
    dataset = dataset_of(client, rows[0], max_samples=3, batch_size=batch_size)
    kept = [tf.identity(x.data[0]) for x in dataset]
    del dataset
    found = np.concatenate([x.numpy().reshape(-1, len(texts)) for x in kept])
    assert found.tolist() == rows.tolist()


def test_strings_outlive_their_batch(client):
    texts = [b"x" * 5000, b"y" * 22, b"z" * 23]
    for text in texts:
        client.insert([np.array(text, dtype=object)], {"table": 1.0})
    dataset = dataset_of(client, np.array(b"", dtype=object), max_samples=3)
    gathered = [tf.gather(sample.data[0], [0, 0]) for sample in dataset.cache().shuffle(3)]
    assert sorted(x.numpy().tolist() for x in gathered) == sorted([[text] * 2 for text in texts])


def test_scalars_and_empty_arrays(client):
    client.insert([np.float32(3.5), np.zeros((0, 4), np.int64)], {"table": 1.0})
    shapes = [tf.TensorShape([1]), tf.TensorShape([1, 0, 4])]
    dataset = reverb.TrajectoryDataset(
        client.server_address, "table", [tf.float32, tf.int64], shapes, 1
    )
    scalar, empty = next(iter(dataset)).data
    assert scalar.numpy().tolist() == [3.5]
    assert empty.shape == (1, 0, 4)


def test_large_items_come_whole(client):
    frames = np.arange(3 * 512 * 1024, dtype=np.uint8).reshape(3, 512, 1024)
    for frame in frames:
        client.insert([frame], {"table": 1.0})
    for batch in dataset_of(client, frames[0], max_samples=3).batch(3):
        np.testing.assert_array_equal(batch.data[0][:, 0], frames)


WRONG = {
    "dtype": (tf.float32, [1, 2], "(dtype, shape): (float, [1,2])"),
    "size": (tf.int64, [1, 3], "(dtype, shape): (int64, [1,3])"),
    "rank": (tf.int64, [1], "(dtype, shape): (int64, [1])"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_item_that_differs_is_refused(client, name):
    dtype, shape, text = WRONG[name]
    client.insert([np.zeros(2, np.int64)], {"table": 1.0})
    dataset = reverb.TrajectoryDataset(
        client.server_address, "table", [dtype], [tf.TensorShape(shape)], 1
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(text)) as error:
        next(iter(dataset))
    assert "Tensor has (dtype, shape): (int64, [1,2])" in str(error.value)
    assert "from table 'table'" in str(error.value)


def test_an_item_with_another_number_of_columns_is_refused(client):
    client.insert([np.int64(1), np.int64(2)], {"table": 1.0})
    dataset = reverb.TrajectoryDataset(
        client.server_address, "table", [tf.int64], [tf.TensorShape([1])], 1
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="2"):
        next(iter(dataset))


def test_unknown_shapes_fit_everything(client):
    client.insert([np.zeros((2, 3), np.int64)], {"table": 1.0})
    dataset = reverb.TrajectoryDataset(client.server_address, "table", [tf.int64], [None], 1)
    assert next(iter(dataset)).data[0].shape == (1, 2, 3)
