# SPDX-License-Identifier: Apache-2.0
"""Exports for NumPy give back what was inserted."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings

from support.command_items import (
    BFLOAT16,
    assert_exported,
    assert_read_back,
    assert_same,
    make_item,
    strings,
    tables_of_items,
)


def read_back(path):
    """All items of an export as dicts of columns, as the documentation says how to read them."""
    description = json.loads((path / "_export.json").read_text())
    (layout,) = description["layouts"]
    columns = description["item_fields"] + layout["columns"]
    items = []
    for part in layout["files"]:
        with np.load(path / part["name"], allow_pickle=False) as file:
            items += [
                {column["name"]: one(file, column, i) for column in columns}
                for i in range(part["num_items"])
            ]
    return items


def one(file, column, i):
    """Column `column` of item `i`."""
    name = column["name"]
    rows = all_strings(file, column) if column["dtype"] == "string" else file[name]
    if f"{name}/offsets" not in file:
        return rows[i : i + 1].reshape(())
    offsets = file[f"{name}/offsets"]
    return rows[offsets[i] : offsets[i + 1]]


def all_strings(file, column):
    data, offsets = file[column["name"]].tobytes(), file[f"{column['name']}/string_offsets"]
    values = strings(*(data[start:end] for start, end in itertools.pairwise(offsets)))
    if not column["shape"]:
        return values
    return values.reshape(file[f"{column['name']}/offsets"][-1], *column["shape"][1:])


def test_all_dtypes_and_a_squeezed_column_make_a_round_trip(run, everything, tmp_path):
    out = tmp_path / "out"
    code, _, _ = run(
        "export", everything.address, "--table=replay", "--format=npz", "--output", out
    )
    assert code == 0
    items = read_back(out)
    assert_exported(items, everything)


@settings(max_examples=60)
@given(items=tables_of_items())
def test_any_items_come_back(export_items, items):
    found = read_back(export_items(items, "npz", shard_items=2))
    assert_read_back(found, items)


def test_rows_are_consecutive_for_equal_and_other_lengths(export_items):
    items = [make_item([np.arange(6).reshape(3, 2) + 10 * i, np.int64(i)]) for i in range(4)]
    items = [make_item([np.asarray(column) for column in item.columns]) for item in items]
    with np.load(export_items(items, "npz") / "part-00000.npz") as file:
        assert file["column_0"].shape == (12, 2)
        np.testing.assert_array_equal(file["column_0/offsets"], [0, 3, 6, 9, 12])
        np.testing.assert_array_equal(file["column_0"].reshape(4, 3, 2)[2], items[2].columns[0])
        np.testing.assert_array_equal(file["column_1"], [0, 1, 2, 3])
        assert "column_1/offsets" not in file


@pytest.mark.parametrize("bfloat16", BFLOAT16)
def test_types_that_numpy_lacks_are_their_bits(export_items, bfloat16):
    bits = np.array([0x3F80, 0xC000], np.uint16)
    path = export_items([make_item([bits.view(bfloat16)])], "npz")
    with np.load(path / "part-00000.npz") as file:
        assert_same(file["column_0"], bits)
    description = json.loads((path / "_export.json").read_text())
    (column,) = description["layouts"][0]["columns"]
    assert (column["dtype"], column["stored_as"]) == ("bfloat16", "uint16")


def test_an_empty_table_gives_empty_arrays(run, everything, tmp_path):
    out = tmp_path / "out"
    assert (
        run("export", everything.address, "--table=empty", "--format=npz", "--output", out)[0] == 0
    )
    with np.load(out / "part-00000.npz") as file:
        assert list(file) == ["item/key", "item/priority", "item/times_sampled", "item/inserted_at"]
        assert all(len(file[name]) == 0 for name in file)


@pytest.mark.parametrize("num_items", [1, 5])
def test_a_single_file_has_its_description_beside_it(run, everything, tmp_path, num_items):
    out = tmp_path / "some.npz"
    options = ("--table=replay", "--format=npz", "--max-items", num_items)
    assert run("export", everything.address, *options, "--output", out)[0] == 0
    with np.load(out) as file:
        assert len(file["item/key"]) == num_items
        assert file["all/float32/offsets"][-1] == len(file["all/float32"])
    assert json.loads((tmp_path / "some.npz.json").read_text())["num_items"] == num_items
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.npz", "some.npz.json"]
