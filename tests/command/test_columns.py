# SPDX-License-Identifier: Apache-2.0
"""How exported columns are named, and what the items of one export must have in common."""

import collections
import json

import numpy as np
import pytest

from reverb.command.export import export
from reverb.errors import InvalidArgumentError, SignatureMismatchError
from reverb.specs import TensorSpec
from support.command_items import FakeSource, make_item

SPEC = TensorSpec([None], np.int64)
Pair = collections.namedtuple("Pair", ["second", "first"])


def described(path):
    (layout,) = json.loads((path / "_export.json").read_text())["layouts"]
    return {column["name"]: column for column in layout["columns"]}


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


DIFFERENT = {
    "float32 [?, 3]": np.zeros((2, 3), np.float32),
    "float64 [?, 2]": np.zeros((2, 2), np.float64),
    "float32 [?]": np.zeros(2, np.float32),
    "float32 []": np.zeros((), np.float32),
}


def items_that_differ(*others):
    items = [make_item([np.zeros((n, 2), np.float32)], key=n) for n in (1, 2, 3)]
    return [items[0], items[1], *(make_item([other], key=7) for other in others), items[2]]


@pytest.mark.parametrize("text", DIFFERENT)
def test_items_of_other_layouts_have_files_of_their_own(export_items, text):
    path = export_items(items_that_differ(DIFFERENT[text]), "npz")
    description = json.loads((path / "_export.json").read_text())
    assert description["num_items"] == 4
    first, second = description["layouts"]
    assert first["columns"][0]["shape"] == [None, 2]
    assert first["files"] == [{"name": "part-00000.npz", "num_items": 3}]
    assert second["files"] == [{"name": "layout1-part-00000.npz", "num_items": 1}]
    with np.load(path / "part-00000.npz") as file:
        assert file["item/key"].tolist() == [1, 2, 3]
        assert file["column_0"].shape == (6, 2)
    with np.load(path / "layout1-part-00000.npz") as file:
        assert file["item/key"].tolist() == [7]
        assert file["column_0"].dtype == DIFFERENT[text].dtype


@pytest.mark.parametrize("text", DIFFERENT)
def test_one_file_cannot_hold_items_of_several_layouts(tmp_path, text):
    source = FakeSource(items_that_differ(DIFFERENT[text]))
    with pytest.raises(InvalidArgumentError) as caught:
        export(source, "table", "npz", tmp_path / "out.npz")
    assert str(caught.value) == (
        "item 7 differs from those before it in more than its length, so one file cannot hold "
        f"them: {text}; give a directory as --output"
    )
    assert list(tmp_path.iterdir()) == []


def test_items_with_other_columns_have_files_of_their_own(export_items):
    path = export_items([ints(2), ints(3)], "npz")
    description = json.loads((path / "_export.json").read_text())
    assert [len(layout["columns"]) for layout in description["layouts"]] == [2, 3]


def test_too_many_layouts_are_an_error(export_items):
    items = [make_item([np.zeros((1, n))], key=n) for n in range(17)]
    with pytest.raises(
        InvalidArgumentError,
        match=r"more than 16 layouts, the next is that of item 16: float64 \[\?, 16\]",
    ):
        export_items(items, "npz")


def test_files_of_each_layout_are_cut_by_themselves(export_items):
    items = [make_item([np.zeros(1, dtype)]) for dtype in ("f4", "f8") * 3]
    path = export_items(items, "npz", shard_items=2)
    names = sorted(child.name for child in path.glob("*.npz"))
    assert names == [
        "layout1-part-00000.npz",
        "layout1-part-00001.npz",
        "part-00000.npz",
        "part-00001.npz",
    ]
    export(FakeSource(items[:1]), "table", "npz", path, overwrite=True)
    assert sorted(child.name for child in path.iterdir()) == ["_export.json", "part-00000.npz"]


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
