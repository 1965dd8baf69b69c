# SPDX-License-Identifier: Apache-2.0
"""Objects that are closed or stopped answer at once; other libraries have rows in their rooms."""

import ast
import functools
import pathlib
import re

import pytest

from support.ended_objects import ELSEWHERE, ROWS, check, tables

ROOT = pathlib.Path(__file__).parents[2]
ENDS = {"close", "aclose", "stop", "shutdown", "__exit__", "__aexit__", "__next__", "__anext__"}
CLASSES = sorted(
    name
    for page in (ROOT / "docs" / "reference").glob("*.rst")
    for name in re.findall(r"^\.\. autoclass:: (\S+)", page.read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("name", ROWS[""])
def test_nothing_waits_after_the_end(start, name):
    check(ROWS[""][name], f"localhost:{start(*tables()).port}")


@functools.cache
def classes_of(folder):
    """The classes of each file below a folder: their methods, and their bases."""
    return {
        file: {
            node.name: (
                {it.name for it in node.body if hasattr(it, "name")},
                {ast.unparse(it).partition("[")[0].split(".")[-1] for it in node.bases},
            )
            for node in ast.parse(file.read_text()).body
            if isinstance(node, ast.ClassDef)
        }
        for file in folder.rglob("*.py")
    }


def has_end(documented):
    """Whether a documented class, or one that it inherits from, has a method with such a name."""
    package, parts = ROOT / "reverb", documented.split(".")
    depth = {"adapters": 3, "aio": 2}.get(parts[1], 1)
    folder = package.joinpath(*parts[1:depth])
    found = {}
    for file, classes in classes_of(folder).items():
        if depth > 1 or not {"adapters", "aio"} & set(file.relative_to(package).parts):
            found |= classes
    names = [parts[-1]]
    for name in names:
        methods, bases = found.get(name, ((), ()))
        if ENDS & set(methods):
            return True
        names += [it for it in bases if it not in names]
    return False


def test_every_class_with_an_end_is_in_the_table():
    has_row = {name.split()[0] for rows in ROWS.values() for name in rows}
    missing = [
        name
        for name in CLASSES
        if name not in has_row
        and not f"{name}.".startswith(tuple(f"{it}." for it in ELSEWHERE))
        and has_end(name)
    ]
    assert not missing, "they need a row in support/ended_objects.py"


def test_every_adapter_is_in_the_table():
    adapters = {path.parent.name for path in (ROOT / "reverb/adapters").glob("*/__init__.py")}
    named = {name.split()[0] for rows in ROWS.values() for name in rows} | set(ELSEWHERE)
    assert adapters == {name.split(".")[2] for name in named if name.startswith("reverb.adapters.")}


@pytest.mark.parametrize("file", sorted(set(ELSEWHERE.values())))
def test_other_rooms_say_what_happens_after_the_end(file):
    assert re.search(r"def test_\w*(close|stop|end)", (ROOT / "tests" / file).read_text())
