# SPDX-License-Identifier: Apache-2.0
"""TensorFlow reads what `reverb export --format tfrecord` wrote."""

import json

import numpy as np
import pytest
import tensorflow as tf

from reverb import command, testing
from reverb.specs import TensorSpec

NUM_ITEMS = 12

# One column for each way of storing, as `[T, 2]`, and how the documentation says to read it.
INT64 = ["bool", "int8", "int16", "int32", "int64", "uint16", "uint32"]
FLOAT = ["float16", "float32"]
RAW = ["uint8", "float64", "complex64", "complex128"]


def extremes(name):
    dtype = np.dtype(name)
    if name == "bool":
        return [True, False]
    if dtype.kind in "iu":
        return [np.iinfo(dtype).min, np.iinfo(dtype).max]
    return [np.finfo(dtype).min, np.finfo(dtype).tiny]


def step(i):
    numbers = {name: np.roll(np.array(extremes(name), name), i) for name in INT64 + FLOAT + RAW}
    numbers["uint64"] = np.array([i, 2**64 - 1 - i], np.uint64)
    return numbers | {"text": f"step {i}", "image": np.full((3, 4), i, np.uint8)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Where the files are, and what was inserted."""
    path = tmp_path_factory.mktemp("export") / "out"
    first = step(0)
    signature = {
        name: TensorSpec([None, *np.shape(value)], np.asarray(value).dtype)
        for name, value in first.items()
    }
    signature["image"] = TensorSpec([3, 4], np.uint8)
    inserted = []
    with testing.server([testing.table(signature=signature)]) as client:
        with client.trajectory_writer(3) as writer:
            for i in range(NUM_ITEMS):
                writer.append(step(i))
                length = min(i, 2) + 1
                trajectory = {name: writer.history[name][-length:] for name in first}
                trajectory["image"] = writer.history["image"][-1]
                writer.create_item("table", i / 3, trajectory)
                steps = [step(j) for j in range(i + 1 - length, i + 1)]
                item = {name: np.stack([one[name] for one in steps]) for name in first}
                inserted.append(item | {"image": steps[-1]["image"]})
        options = ["--table=table", "--format=tfrecord", "--shard-items=5", f"--output={path}"]
        assert command.main(["export", client.server_address, *options]) == 0
        keys = [sample.info.key for sample in client.scan("table")]
    return path, inserted, keys


def parse(path):
    many = dict.fromkeys([*INT64, "uint64"], tf.int64) | dict.fromkeys(FLOAT, tf.float32)
    features = {
        name: tf.io.FixedLenSequenceFeature([2], dtype, allow_missing=True)
        for name, dtype in many.items()
    }
    features["text"] = tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)
    raw = [*RAW, "image", "item/priority", "item/inserted_at"]
    features |= {name: tf.io.FixedLenFeature([], tf.string) for name in raw}
    features |= {
        name: tf.io.FixedLenFeature([], tf.int64) for name in ("item/key", "item/times_sampled")
    }
    files = tf.data.Dataset.list_files(str(path / "*.tfrecord"), shuffle=False)
    return [
        tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(files)
    ]


def test_all_ways_of_storing_are_read_as_documented(exported):
    path, inserted, keys = exported
    items = parse(path)
    assert len(items) == NUM_ITEMS
    for i, (item, expected) in enumerate(zip(items, inserted, strict=True)):
        found = {name: tf.cast(item[name], name) for name in INT64 + FLOAT}
        found["uint64"] = tf.bitcast(item["uint64"], tf.uint64)
        found |= {
            name: tf.reshape(tf.io.decode_raw(item[name], tf.as_dtype(name)), [-1, 2])
            for name in RAW
        }
        for name, tensor in found.items():
            assert tensor.dtype == tf.as_dtype(name)
            np.testing.assert_array_equal(tensor, expected[name], err_msg=name)
        assert item["text"].numpy().tolist() == [text.encode() for text in expected["text"]]
        image = tf.reshape(tf.io.decode_raw(item["image"], tf.uint8), [3, 4])
        np.testing.assert_array_equal(image, expected["image"])
        assert tf.bitcast(item["item/key"], tf.uint64) == keys[i]
        assert item["item/times_sampled"] == 0
        assert tf.io.decode_raw(item["item/priority"], tf.float64).numpy().tolist() == [i / 3]


def test_the_description_tells_how_to_parse(exported):
    """A reader that knows nothing but the description finds every column."""
    path, inserted, _ = exported
    description = json.loads((path / "_export.json").read_text())
    kinds = {
        "int64_list": tf.io.VarLenFeature(tf.int64),
        "float_list": tf.io.VarLenFeature(tf.float32),
        "bytes_list of strings": tf.io.VarLenFeature(tf.string),
        "bytes_list of one tensor": tf.io.FixedLenFeature([], tf.string),
    }
    (layout,) = description["layouts"]
    columns = {column["name"]: column for column in layout["columns"]}
    assert set(columns) == set(inserted[0])
    features = {name: kinds[column["stored_as"]] for name, column in columns.items()}
    count = 0
    for file in layout["files"]:
        for record in tf.data.TFRecordDataset(str(path / file["name"])):
            item = tf.io.parse_single_example(record, features)
            for name, column in columns.items():
                shape = [-1 if size is None else size for size in column["shape"]]
                values = item[name]
                if column["stored_as"] == "bytes_list of one tensor":
                    values = tf.io.decode_raw(values, tf.as_dtype(column["dtype"]))
                else:
                    values = tf.sparse.to_dense(values)
                assert tf.reshape(values, shape).shape == inserted[count][name].shape
            count += 1
    assert count == NUM_ITEMS
