# SPDX-License-Identifier: Apache-2.0
"""Items of every kind of value, and a source of items that never were in a server."""

import dataclasses
import types
import typing

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import reverb
from reverb.command.source import StoredItem

NUMBERS = [
    np.dtype(name)
    for name in (
        ["bool", "float16", "float32", "float64", "complex64", "complex128"]
        + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    )
]
# As it is read with the package `ml_dtypes`, and without.
BFLOAT16 = [
    np.dtype(ml_dtypes.bfloat16),
    np.dtype("V2", metadata={"reverb_dtype": "bfloat16"}),
]
STRINGS = [b"", b"ends with zeros\0\0", "Grüße".encode(), b"\xff" * 300]


class FakeSource:
    """A table `table` with items that never were in a server."""

    kind = "server"
    name = "nowhere:1"
    missing: typing.ClassVar = {}

    def __init__(self, items, signature=None):
        self.items = items
        info = types.SimpleNamespace(current_size=len(items), signature=signature)
        self.tables = {"table": info}

    def scan(self, table):
        assert table == "table"
        yield from self.items


def strings(*values):
    """An array of strings as tables hold them."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def make_item(columns, key=1, priority=1.0, times_sampled=0, inserted_at=0.0):
    return StoredItem(key, priority, times_sampled, inserted_at, columns)


@dataclasses.dataclass
class Everything:
    """A server with a table of all dtypes, and what was inserted."""

    client: reverb.Client
    inserted: list[dict[str, np.ndarray]]
    priorities: list[float]

    @property
    def address(self):
        return self.client.server_address


def every_dtype(num_steps):
    """Columns `[num_steps, 2]` of all dtypes, with the extreme values of each."""
    columns = {}
    for dtype in NUMBERS:
        if dtype.kind == "b":
            extremes = [True, False]
        elif dtype.kind in "iu":
            extremes = [np.iinfo(dtype).min, np.iinfo(dtype).max]
        else:
            extremes = [np.finfo(dtype).min, np.finfo(dtype).tiny]
        columns[dtype.name] = np.array([extremes[i % 2 :][:1] * 2 for i in range(num_steps)], dtype)
    columns["text"] = strings(*(STRINGS[i % len(STRINGS)] for i in range(num_steps)))
    return columns


def assert_same(found, expected):
    """Asserts equal values, dtypes and shapes."""
    expected = np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def assert_exported(items, everything):
    """Asserts that these items, as they were exported, are those of the table `replay`."""
    assert [item["item/priority"] for item in items] == everything.priorities
    keys = [sample.info.key for sample in everything.client.scan("replay")]
    assert [item["item/key"] for item in items] == keys
    assert [item["item/times_sampled"] for item in items] == [0] * len(keys)
    for item, inserted in zip(items, everything.inserted, strict=True):
        assert {name for name in item if not name.startswith("item/")} == set(inserted)
        for name, expected in inserted.items():
            assert_same(item[name], expected)


def assert_read_back(found, items, empty_rows=True):
    """Asserts that these items, as they were exported, are `items`.

    Without `empty_rows` the number of rows without elements may differ.
    """
    assert len(found) == len(items)
    for read, item in zip(found, items, strict=True):
        assert read["item/key"] == item.key
        assert read["item/priority"] == item.priority
        assert read["item/times_sampled"] == item.times_sampled
        assert read["item/inserted_at"] == item.inserted_at
        for i, column in enumerate(item.columns):
            if empty_rows or column.size:
                assert_same(read[f"column_{i}"], column)
            else:
                assert read[f"column_{i}"].size == 0


def columns_of(dtype, row_shape, lengths):
    """A strategy: an array `[length, *row_shape]` for each length, or scalars if that is `None`."""
    shapes = [() if row_shape is None else (length, *row_shape) for length in lengths]
    if dtype.kind == "O":
        return st.tuples(*(_string_arrays(shape) for shape in shapes))
    return st.tuples(*(st_numpy.arrays(dtype, shape) for shape in shapes))


def _string_arrays(shape):
    size = int(np.prod(shape))
    values = st.lists(st.binary(max_size=5), min_size=size, max_size=size)
    return values.map(lambda values: strings(*values).reshape(shape))


@st.composite
def tables_of_items(draw):
    """A strategy: items of one layout, with any keys, priorities and lengths."""
    num_items = draw(st.integers(1, 6))
    layouts = st.tuples(
        st.sampled_from([*NUMBERS, np.dtype(object)]),
        st.none() | st.lists(st.integers(0, 3), max_size=2).map(tuple),
    )
    columns = []
    for dtype, row_shape in draw(st.lists(layouts, min_size=1, max_size=4)):
        lengths = draw(st.lists(st.integers(0, 4), min_size=num_items, max_size=num_items))
        columns.append(draw(columns_of(dtype, row_shape, lengths)))
    return [
        make_item(
            [column[i] for column in columns],
            key=draw(st.integers(0, 2**64 - 1)),
            priority=draw(st.floats(allow_nan=False)),
            times_sampled=draw(st.integers(0, 2**31 - 1)),
            inserted_at=draw(st.floats(0, 4e9)),
        )
        for i in range(num_items)
    ]
