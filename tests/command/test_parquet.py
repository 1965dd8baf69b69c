# SPDX-License-Identifier: Apache-2.0
"""Exports as Parquet give back what was inserted."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings

from support.command_items import (
    BFLOAT16,
    assert_exported,
    assert_read_back,
    make_item,
    strings,
    tables_of_items,
)

REASON = "pyarrow is not installed; it comes with the extra `test`"
pyarrow = pytest.importorskip("pyarrow", reason=REASON)
pq = pytest.importorskip("pyarrow.parquet", reason=REASON)


def read_back(path):
    """All items of an export as dicts of columns, as the documentation says how to read them."""
    table = pq.read_table(path)
    items = []
    for i in range(len(table)):
        item = {}
        for field in table.schema:
            value = table[field.name][i].as_py()
            item[field.name] = as_array(value, field.metadata) if field.metadata else value
        items.append(item)
    return items


def as_array(value, metadata):
    shape = json.loads(metadata[b"shape"])
    dtype = metadata[b"dtype"].decode()
    target = [] if not shape else [-1 if size is None else size for size in shape]
    if 0 in target:
        target[0] = len(value)
    if dtype == "string":
        return strings(*leaves(value)).reshape(target)
    if dtype.startswith("complex"):
        parts = np.array(value, f"float{int(dtype[7:]) // 2}").reshape(*target, 2)
        return parts.view(dtype)[..., 0]
    return np.array(value, dtype).reshape(target)


def leaves(value):
    if not isinstance(value, list):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]


def test_all_dtypes_and_a_squeezed_column_make_a_round_trip(run, everything, tmp_path):
    out = tmp_path / "out"
    options = ("--table=replay", "--format=parquet", "--shard-items=4")
    assert run("export", everything.address, *options, "--output", out)[0] == 0
    assert len(list(out.glob("*.parquet"))) == 3
    items = read_back(out)
    assert_exported(items, everything)


@settings(max_examples=60)
@given(items=tables_of_items())
def test_any_items_come_back(export_items, items):
    found = read_back(export_items(items, "parquet") / "part-00000.parquet")
    assert_read_back(found, items)


def test_rows_are_lists_and_inner_dimensions_lists_of_fixed_size(export_items):
    items = [make_item([np.zeros((length, 3, 2), np.float32)]) for length in (1, 4)]
    path = export_items(items, "parquet") / "part-00000.parquet"
    field = pq.read_schema(path).field("column_0")
    inner = pyarrow.list_(pyarrow.list_(pyarrow.float32(), 2), 3)
    assert field.type == pyarrow.list_(inner)
    assert json.loads(field.metadata[b"shape"]) == [None, 3, 2]
    assert field.metadata[b"dtype"] == b"float32"


@pytest.mark.parametrize("bfloat16", BFLOAT16)
def test_types_that_numpy_lacks_are_their_bits(export_items, bfloat16):
    bits = np.array([0x3F80, 0xC000], np.uint16)
    path = export_items([make_item([bits.view(bfloat16)])], "parquet") / "part-00000.parquet"
    table = pq.read_table(path)
    assert table["column_0"][0].as_py() == bits.tolist()
    assert table.schema.field("column_0").metadata[b"dtype"] == b"bfloat16"


def test_an_empty_table_gives_a_table_without_rows(run, everything, tmp_path):
    out = tmp_path / "empty.parquet"
    options = ("--table=empty", "--format=parquet")
    assert run("export", everything.address, *options, "--output", out)[0] == 0
    table = pq.read_table(out)
    assert len(table) == 0
    assert table.column_names == [
        "item/key",
        "item/priority",
        "item/times_sampled",
        "item/inserted_at",
    ]


def test_a_missing_pyarrow_is_an_error_with_the_remedy(run, everything, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    options = ("--table=replay", "--format=parquet", "--output", tmp_path / "out")
    code, out, err = run("export", everything.address, *options)
    assert (code, out) == (1, "")
    assert "the format parquet needs pyarrow" in err
    assert err.endswith("pip install 'pyarrow>=15'\n")
    assert list(tmp_path.iterdir()) == []
