# SPDX-License-Identifier: Apache-2.0
"""The programs of the cookbook run as they stand, are short, and are on its page."""

import ast
import pathlib
import re

import pytest

from support.cookbook import PROGRAMS, needs, run
from support.waiting import PATIENCE

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cookbook.md"
# The rooms that run those with a library.
ROOMS = {"PyTorch": "with_torch", "PyTorch and Gymnasium": "with_torch", "JAX": "with_jax"}


def ids(path):
    return path.stem


@pytest.mark.parametrize("program", [it for it in PROGRAMS if not needs(it)], ids=ids)
def test_a_program_that_needs_no_library_runs(program, tmp_path):
    run(program, tmp_path, 55 * PATIENCE * PATIENCE)
    assert list(tmp_path.iterdir()) == []


def lines_of_code(text):
    """Lines without those that are empty, a comment or a docstring."""
    nodes = [node for node in ast.walk(ast.parse(text)) if hasattr(node, "body")]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        line
        for node in nodes
        if isinstance(node, documented) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }
    return sum(
        line.strip() != "" and not line.strip().startswith("#") and number not in docstrings
        for number, line in enumerate(text.splitlines(), 1)
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_a_program_is_short_and_on_the_page(program):
    text = program.read_text(encoding="utf-8")
    assert lines_of_code(text) <= 60
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(f"```{{literalinclude}} ../examples/cookbook/{program.name}\n") == 1
    assert needs(program) is None or needs(program) in ROOMS


def test_the_page_has_no_other_programs():
    named = re.findall(r"literalinclude\} \.\./examples/cookbook/(\S+)", PAGE.read_text("utf-8"))
    assert sorted(named) == [program.name for program in PROGRAMS]


def test_lines_of_code_are_counted_without_texts_about_them():
    text = '# SPDX\n"""Title.\n\nMore.\n"""\n\nimport sys\n\n\n'
    text += 'def f():\n    """Text."""\n    # Why.\n    return 1  # One.\n'
    assert lines_of_code(text) == 3
