# SPDX-License-Identifier: Apache-2.0
"""The table of parts and rooms of tests is whole, and the nets are found in the recipes."""

import pathlib
import re
import sys

import pytest

from support.programs_as_modules import program_as_module

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "reverb"
TESTS = ROOT / "tests"


@pytest.fixture(scope="module")
def part_tests():
    with program_as_module("tools/part_tests.py") as module:
        yield module


def parts_of_the_package():
    rooms = {path for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    rooms |= {path.parent for path in PACKAGE.glob("*/__init__.py")}
    rooms |= {path.parent for path in PACKAGE.glob("adapters/*/__init__.py")}
    rooms |= {PACKAGE / "adapters" / "queue.py"}
    rooms |= {path.parent for path in PACKAGE.rglob("Cargo.toml")}
    # Their parts have rows of their own.
    rooms -= {PACKAGE / "core", PACKAGE / "adapters"}
    return {path.relative_to(PACKAGE).as_posix() for path in rooms}


def test_every_part_of_the_package_has_a_row(part_tests):
    assert set(part_tests.rooms_of_parts()) == parts_of_the_package()


def test_the_rows_reach_every_room_of_tests(part_tests):
    reached = {room for rooms in part_tests.rooms_of_parts().values() for room in rooms}
    rooms = {path.name for path in TESTS.iterdir() if any(path.rglob("test_*.py"))}
    assert reached == rooms


def test_the_first_table_has_every_room_of_tests():
    table = (TESTS / "README.md").read_text(encoding="utf-8").split("\n\n## ")[0]
    described = set(re.findall(r"`(\w+)/`", table))
    rooms = {path.name for path in TESTS.iterdir() if any(path.rglob("*.py"))}
    assert rooms <= described


def test_the_nets_of_the_recipes_are_found(part_tests):
    rust, files, names = part_tests.nets()
    assert "every_kind_survives_a_round_trip" in rust
    assert "tests/api/test_table_options.py" in files
    assert [file for file in files if not (ROOT / file).is_file()] == []
    sources = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    assert names
    assert [name for name in names if not re.search(rf"(?:def|class) {name}\b", sources)] == []


def test_a_part_that_is_not_in_the_table_is_refused(part_tests, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["part_tests.py", "core/nothing"])
    with pytest.raises(SystemExit, match="core/shards"):
        part_tests.main()
