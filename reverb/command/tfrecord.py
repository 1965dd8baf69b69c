# SPDX-License-Identifier: Apache-2.0
"""Format tfrecord: TFRecord files for TensorFlow with one `tf.train.Example` message per item.

The features of an item are `item/key`, `item/priority`, `item/times_sampled`, `item/inserted_at`
(seconds since 1970), and its columns. Values are stored without loss, by dtype:

* bool, int8, int16, int32, int64, uint16, uint32: `int64_list` of all values; `tf.cast` them;
* uint64, such as `item/key`: `int64_list` of the bits; `tf.bitcast(x, tf.uint64)`;
* float16, float32: `float_list` of all values; `tf.cast` float16;
* strings: `bytes_list` of all values;
* uint8, float64, complex numbers, and types such as bfloat16: `bytes_list` of one value, the
  little-endian bytes of the tensor; `tf.io.decode_raw(x, dtype)`, then `tf.reshape`. (A
  `float_list` is float32, so float64 would lose digits.)

The description (`_export.json`, or `<file>.json` beside a single file) has the dtype, the shape
with `null` for the number of rows, and the kind of feature of each column. To read a column `a` of
int32 `[T, 2]` and frames `b` of uint8:

    features = {"a": tf.io.FixedLenSequenceFeature([2], tf.int64, allow_missing=True),
                "b": tf.io.FixedLenFeature([], tf.string)}
    for record in tf.data.TFRecordDataset("out/part-00000.tfrecord"):
        item = tf.io.parse_single_example(record, features)
        frames = tf.reshape(tf.io.decode_raw(item["b"], tf.uint8), [-1, 84, 84])
"""

import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from reverb.command import example
from reverb.command.columns import Batch, Column, Rows

SUFFIXES = (".tfrecord", ".tfrecords")

_INT64_DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"}
_FLOAT_DTYPES = {"float16", "float32"}


class TfrecordFile:
    """Writes one TFRecord file."""

    def __init__(self, path: pathlib.Path, layout: Sequence[Column]) -> None:
        self._file = path.open("wb")
        self._layout = layout

    def write(self, batch: Batch) -> None:
        """Appends a batch of items."""
        ones = np.ones(batch.num_items, np.int64)
        features = {
            name: _features(values.dtype, Rows(values, ones))
            for name, values in batch.fields.items()
        }
        for column, rows in zip(self._layout, batch.columns, strict=True):
            features[column.name] = _features(column.dtype, rows)
        self._file.writelines(map(example.record, example.examples(features)))

    def close(self) -> None:
        """Completes the file."""
        self._file.close()

    def abandon(self) -> None:
        """Closes the file although it is incomplete."""
        self._file.close()

    @staticmethod
    def stored_as(column: Column) -> str:
        """Returns how a column is stored, for the description of the export."""
        return feature_kind(column.dtype)


def feature_kind(dtype: np.dtype[Any]) -> str:
    """Returns how values of a dtype are stored; see above."""
    if dtype.isbuiltin == 1 and dtype.name in _INT64_DTYPES:
        return "int64_list"
    if dtype.isbuiltin == 1 and dtype.name in _FLOAT_DTYPES:
        return "float_list"
    return "bytes_list of strings" if dtype.kind == "O" else "bytes_list of one tensor"


def _features(dtype: np.dtype[Any], rows: Rows) -> Iterator[bytes]:
    """Yields the encoded feature of each item of a column; `dtype` is that of the items."""
    kind = feature_kind(dtype)
    ends = np.concatenate([[0], np.cumsum(rows.lengths)])
    if kind == "bytes_list of one tensor":
        values = rows.values
        little_endian = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        tensors = [little_endian[a:b].tobytes() for a, b in itertools.pairwise(ends.tolist())]
        return example.bytes_features(tensors, range(len(tensors) + 1))
    # Number of values per row. Rows without values write nothing.
    size = int(np.prod(rows.values.shape[1:], dtype=np.int64))
    flat, bounds = rows.values.reshape(-1), (ends * size).tolist()
    if kind == "int64_list":
        return example.int64_features(flat, bounds)
    if kind == "float_list":
        return example.float_features(flat, bounds)
    return example.bytes_features(flat.tolist(), bounds)
