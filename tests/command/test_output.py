# SPDX-License-Identifier: Apache-2.0
"""An export is there complete or not at all, and replaces nothing that it should not."""

import importlib.util
import json
import os
import pathlib
import stat

import numpy as np
import pytest

from reverb.command.export import export
from reverb.errors import InvalidArgumentError
from support.command_items import FakeSource, make_item

ITEMS = [make_item([np.full(3, i)], key=i) for i in range(10)]
FORMATS = [
    "npz",
    "tfrecord",
    pytest.param(
        "parquet",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("pyarrow") is None,
            reason="pyarrow is not installed; it comes with the extra `test`",
        ),
    ),
]


class BrokenSource(FakeSource):
    """Fails, or is interrupted, after some items."""

    def __init__(self, error):
        super().__init__(ITEMS)
        self.error = error

    def scan(self, table):
        yield from self.items[:5]
        raise self.error


def do(path, source=None, format_="npz", **options):
    return export(source or FakeSource(ITEMS), "table", format_, path, **options)


def names(path):
    return sorted(child.name for child in path.iterdir())


def keys(path):
    with np.load(path) as file:
        return file["item/key"].tolist()


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("name", ["out", "out.{}"])
def test_an_interrupted_export_leaves_nothing(tmp_path, format_, error, name):
    with pytest.raises(type(error) if isinstance(error, OSError) else error):
        do(tmp_path / name.format(format_), BrokenSource(error), format_)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["out", "out.npz"])
def test_an_interrupted_export_leaves_the_older_one_alone(tmp_path, name):
    path = tmp_path / name
    do(path)
    before = {child: child.stat().st_mtime_ns for child in tmp_path.rglob("*")}
    with pytest.raises(KeyboardInterrupt):
        do(path, BrokenSource(KeyboardInterrupt), overwrite=True)
    assert {child: child.stat().st_mtime_ns for child in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("name", ["out", "out.npz"])
def test_what_exists_is_replaced_only_if_asked(tmp_path, name):
    path = tmp_path / name
    do(path, shard_items=2 if name == "out" else None)
    with pytest.raises(InvalidArgumentError, match="exists; give --overwrite to replace it"):
        do(path)
    do(path, max_items=3, overwrite=True)
    assert names(tmp_path) == sorted({name, "out.npz.json"} if name == "out.npz" else {name})
    part = path if name == "out.npz" else path / "part-00000.npz"
    assert keys(part) == [0, 1, 2]
    if name == "out":
        assert names(path) == ["_export.json", "part-00000.npz"]


def test_a_directory_with_other_files_is_never_replaced(tmp_path):
    out = tmp_path / "out"
    do(out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="holds other files than those of an export"):
        do(out, overwrite=True)
    assert names(out) == ["_export.json", "notes.txt", "part-00000.npz"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "part-00000.npz").write_text("no export")
    with pytest.raises(InvalidArgumentError, match="holds other files"):
        do(mine, overwrite=True)


def test_an_empty_directory_is_used(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    do(out)
    assert names(out) == ["_export.json", "part-00000.npz"]


def test_a_file_and_a_directory_do_not_replace_each_other(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidArgumentError, match=r"is a file; .* ends with \.npz"):
        do(tmp_path / "file", overwrite=True)
    (tmp_path / "directory.npz" / "x").mkdir(parents=True)
    with pytest.raises(InvalidArgumentError, match="is a directory; the output must be a file"):
        do(tmp_path / "directory.npz", overwrite=True)


def test_missing_directories_are_made(tmp_path):
    do(tmp_path / "a" / "b" / "out.npz")
    assert keys(tmp_path / "a" / "b" / "out.npz") == list(range(10))


def test_the_output_may_be_a_link(tmp_path):
    real = tmp_path / "real"
    do(real)
    (tmp_path / "link").symlink_to(real)
    do(tmp_path / "link", overwrite=True, max_items=1)
    assert (tmp_path / "link").is_symlink()
    assert keys(real / "part-00000.npz") == [0]


def test_files_have_the_permissions_of_any_new_file(tmp_path):
    mask = os.umask(0o022)
    try:
        do(tmp_path / "out")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "out" / "part-00000.npz").stat().st_mode) == 0o644


def test_items_are_cut_into_files_as_asked(tmp_path):
    count, path = do(tmp_path / "out", shard_items=4)
    assert count == 10
    assert path == pathlib.Path(tmp_path / "out").resolve()
    assert [keys(part) for part in sorted(path.glob("*.npz"))] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    (layout,) = json.loads((path / "_export.json").read_text())["layouts"]
    assert [file["num_items"] for file in layout["files"]] == [4, 4, 2]


@pytest.mark.parametrize(("max_items", "parts"), [(4, 1), (5, 2), (10, 3), (100, 3)])
def test_the_oldest_items_come_first_and_no_file_is_empty(tmp_path, max_items, parts):
    count, path = do(tmp_path / "out", shard_items=4, max_items=max_items)
    assert count == min(max_items, 10)
    assert len(list(path.glob("*.npz"))) == parts


def test_without_a_number_of_items_the_size_decides(tmp_path, monkeypatch):
    monkeypatch.setattr("reverb.command.export.SHARD_BYTES", 100)
    _, path = do(tmp_path / "out")  # Items have 24 bytes: the fifth is the first beyond 100.
    assert [len(keys(part)) for part in sorted(path.glob("*.npz"))] == [5, 5]


def test_a_single_file_is_not_cut(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"--shard-items .* is a single file"):
        do(tmp_path / "out.npz", shard_items=4)
