# SPDX-License-Identifier: Apache-2.0
"""Exports for TensorFlow: TFRecord files of `tf.train.Example` messages, one for each item.

The features of an item are `item/key`, `item/priority`, `item/times_sampled`,
`item/inserted_at` (seconds since 1970), and its columns. No value loses anything; the dtype decides
how it is stored:

| dtype | feature | how to read it |
|---|---|---|
| bool, int8, int16, int32, int64, uint16, uint32 | `int64_list`, all values | `tf.cast` |
| uint64, such as `item/key` | `int64_list` of the bits | `tf.bitcast(x, tf.uint64)` |
| float16, float32 | `float_list`, all values | `tf.cast` for float16 |
| strings | `bytes_list`, all values | as it is |
| uint8; float64, complex; bfloat16 and its like | `bytes_list`, one value: the bytes of the tensor,
little-endian | `tf.io.decode_raw(x, dtype)`, then `tf.reshape` |

float64 is not a `float_list`, because that is float32. The description (`export.json`, or beside a
single file `<file>.json`) has of each column the dtype, the shape with `null` for the number of
rows, and the kind of feature. Reading a column `a` of int32 `[T, 2]` and uint8 frames `b`:

    features = {"a": tf.io.FixedLenSequenceFeature([2], tf.int64, allow_missing=True),
                "b": tf.io.FixedLenFeature([], tf.string)}
    for record in tf.data.TFRecordDataset("out/part-00000.tfrecord"):
        item = tf.io.parse_single_example(record, features)
        frames = tf.reshape(tf.io.decode_raw(item["b"], tf.uint8), [-1, 84, 84])
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from reverb.command import example
from reverb.command.columns import ITEM_FIELDS, Batch, Column

SUFFIXES = (".tfrecord", ".tfrecords")

_INT64_DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"}
_FLOAT_DTYPES = {"float16", "float32"}

# What makes a feature of an array.
_Encoder = Callable[[np.ndarray], bytes]


class TfrecordFile:
    """Writes one TFRecord file.

    Args:
      path: Where to write.
      layout: Columns of the items.
    """

    def __init__(self, path: pathlib.Path, layout: Sequence[Column]) -> None:
        self._file = path.open("wb")
        self._fields = {name: _ENCODERS[feature_kind(dtype)] for name, dtype in ITEM_FIELDS.items()}
        self._columns = [(column, _ENCODERS[feature_kind(column.dtype)]) for column in layout]

    def write(self, batch: Batch) -> None:
        """Appends some items."""
        ends = [np.cumsum(rows.lengths) for rows in batch.columns]
        for i in range(batch.num_items):
            features = {
                name: encode(batch.fields[name][i : i + 1]) for name, encode in self._fields.items()
            }
            for (column, encode), rows, end in zip(self._columns, batch.columns, ends, strict=True):
                features[column.name] = encode(rows.values[end[i] - rows.lengths[i] : end[i]])
            self._file.write(example.frame(example.example(features)))

    def close(self) -> None:
        """Completes the file."""
        self._file.close()

    def abandon(self) -> None:
        """Closes the file as it is."""
        self._file.close()

    @staticmethod
    def stored_as(column: Column) -> str:
        """How a column is stored, for the description of the export."""
        return feature_kind(column.dtype)


def feature_kind(dtype: np.dtype[Any]) -> str:
    """How values of a dtype are stored; see the table above."""
    if dtype.isbuiltin == 1 and dtype.name in _INT64_DTYPES:
        return "int64_list"
    if dtype.isbuiltin == 1 and dtype.name in _FLOAT_DTYPES:
        return "float_list"
    return "bytes_list of strings" if dtype.kind == "O" else "bytes_list of one tensor"


def _raw_feature(values: np.ndarray) -> bytes:
    little_endian = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return example.bytes_feature([little_endian.tobytes()])


def _string_feature(values: np.ndarray) -> bytes:
    return example.bytes_feature(values.ravel().tolist())


_ENCODERS: dict[str, _Encoder] = {
    "int64_list": example.int64_feature,
    "float_list": example.float_feature,
    "bytes_list of strings": _string_feature,
    "bytes_list of one tensor": _raw_feature,
}
