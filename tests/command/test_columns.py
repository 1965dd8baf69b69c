# SPDX-License-Identifier: Apache-2.0
"""How exported columns are named, and what the items of one export must have in common."""

import collections
import json

import numpy as np
import pytest
from command_items import make_item

from reverb.errors import InvalidArgumentError, SignatureMismatchError
from reverb.specs import TensorSpec

SPEC = TensorSpec([None], np.int64)
Pair = collections.namedtuple("Pair", ["second", "first"])


def described(path):
    description = json.loads((path / "export.json").read_text())
    return {column["name"]: column for column in description["columns"]}


def ints(count):
    return make_item([np.arange(3) for _ in range(count)])


@pytest.mark.parametrize(
    ("signature", "names"),
    [
        (None, ["column_0", "column_1"]),
        ({"b": SPEC, "a": SPEC}, ["a", "b"]),
        ({"a": {"b": [SPEC, SPEC]}}, ["a/b/0", "a/b/1"]),
        (Pair(SPEC, (SPEC,)), ["second", "first/0"]),
    ],
)
def test_columns_have_the_paths_of_the_signature(export_items, signature, names):
    path = export_items([ints(2)], "npz", signature)
    assert list(described(path)) == names
    with np.load(path / "part-00000.npz") as file:
        assert set(names) <= set(file)


def test_a_signature_that_is_one_spec_has_one_numbered_column(export_items):
    assert list(described(export_items([ints(1)], "npz", SPEC))) == ["column_0"]


def test_the_signature_can_be_left_out(export_items):
    path = export_items([ints(1)], "npz", {"a": SPEC}, use_signature=False)
    assert list(described(path)) == ["column_0"]


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ({"a/b": SPEC, "a": {"b": SPEC}}, "a/b"),
        ({"item": {"key": SPEC}, "x": SPEC}, "item/key"),
        ({"a": SPEC, "a/offsets": SPEC}, "a/offsets"),
    ],
)
def test_names_that_meet_are_an_error(export_items, signature, name):
    with pytest.raises(
        InvalidArgumentError,
        match=f"two columns would have the name {name}; export the table with --no-signature",
    ):
        export_items([ints(2)], "npz", signature)
    assert len(described(export_items([ints(2)], "npz", signature, use_signature=False))) == 2


def test_items_with_more_columns_than_the_signature_are_an_error(export_items):
    with pytest.raises(SignatureMismatchError, match=r"has 2 columns, .* signature has 1; .*"):
        export_items([ints(2)], "npz", {"a": SPEC})


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (np.zeros((2, 3), np.float32), r"float32 \[\?, 3\]"),
        (np.zeros((2, 2), np.float64), r"float64 \[\?, 2\]"),
        (np.zeros(2, np.float32), r"float32 \[\?\]"),
        (np.zeros((), np.float32), r"float32 \[\]"),
    ],
)
def test_items_may_differ_in_their_number_of_rows_only(export_items, column, found):
    items = [make_item([np.zeros((n, 2), np.float32)], key=n) for n in (1, 2)]
    with pytest.raises(
        InvalidArgumentError,
        match=rf"column column_0 of item 7 is {found}, that of the first item is "
        r"float32 \[\?, 2\]; only the number of rows may differ",
    ):
        export_items([*items, make_item([column], key=7)], "npz")


def test_items_with_another_number_of_columns_are_an_error(export_items):
    with pytest.raises(InvalidArgumentError, match="item 1 has 3 columns, the first item has 2"):
        export_items([ints(2), ints(3)], "npz")


def test_an_empty_table_has_the_columns_that_its_signature_tells(export_items):
    signature = {"a": TensorSpec([None, 4], np.float32), "b": TensorSpec([], object)}
    path = export_items([], "npz", signature)
    columns = described(path)
    assert (columns["a"]["dtype"], columns["a"]["shape"]) == ("float32", [None, 4])
    assert (columns["b"]["dtype"], columns["b"]["shape"]) == ("string", [])
    with np.load(path / "part-00000.npz") as file:
        assert file["a"].shape == (0, 4)
        assert file["a/offsets"].tolist() == file["b/string_offsets"].tolist() == [0]


@pytest.mark.parametrize(
    "spec", [TensorSpec(None, np.int64), TensorSpec([None, None], np.int64)], ids=str
)
def test_an_empty_table_of_unknown_shapes_has_no_columns(export_items, spec):
    assert described(export_items([], "npz", {"a": spec})) == {}
