# SPDX-License-Identifier: Apache-2.0
"""Comments and docstrings begin with a noun or a verb; names of tests are short."""

import ast
import inspect
import io
import pathlib
import re
import subprocess
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BAD_FIRST_WORD = re.compile(r"\b(?:What|Who|Whom|Whose|Whoever|Of)\b")

# Sections of a docstring whose lines are `name: text`, and those that are a text.
NAMED_SECTIONS = ("Args", "Attributes", "Raises")
TEXT_SECTIONS = ("Returns", "Yields")


def python_files():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.pyi"]
    if not (ROOT / ".git").exists():
        pytest.skip("this copy of the sources has no git repository, which lists the files")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if "_pb2." not in name]


def python_comments(source):
    """Yields line and text of the first line of each block of comments."""
    last = None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            if last != (row - 1, column):
                yield row, token.string.lstrip("#:- ")
            last = (row, column) if token.line.strip().startswith("#") else None


def python_docstrings(source):
    """Yields line and text of each docstring, also of those below a constant."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, inspect.cleandoc(value.value)


def docstring_entries(docstring):
    """Yields line, counted from 0, and text of each entry of a docstring's sections."""
    section = indent = None
    for at, line in enumerate(docstring.split("\n")):
        if heading := re.fullmatch(r"([A-Z]\w+):", line):
            section, indent = heading[1], None
        elif line and not line.startswith(" "):
            section = None
        elif line and section in NAMED_SECTIONS + TEXT_SECTIONS:
            is_first = indent is None
            indent = len(line) - len(line.lstrip()) if is_first else indent
            named = re.match(rf" {{{indent}}}[\w.*`]+(?: \([^)]*\))?: +(.*)", line)
            if section in TEXT_SECTIONS and is_first:
                yield at, line.strip()
            elif section in NAMED_SECTIONS and named:
                yield at, named[1]


def python_faults(source):
    if not BAD_FIRST_WORD.search(source):
        return []  # Most files, and much faster.
    texts = [*python_comments(source)]
    for line, docstring in python_docstrings(source):
        texts.append((line, docstring))
        texts += ((line + at, entry) for at, entry in docstring_entries(docstring))
    return sorted(
        f"{line}: {text.splitlines()[0]}" for line, text in texts if BAD_FIRST_WORD.match(text)
    )


def test_python_texts_begin_with_a_noun_or_a_verb():
    faults = {
        str(path.relative_to(ROOT)): found
        for path in python_files()
        if (found := python_faults(path.read_text(encoding="utf-8")))
    }
    assert not faults


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("# What a line is.\na = 1", 1),
        ("# A block\n# Of two lines.\na = 1", None),
        ("a = 1  # Who waits.", 1),
        ("a = 1  # A number.\n# Whose number it is.", 2),
        ("# Office hours.", None),
        ('"""What this is."""', 1),
        ('a = 1\n"""Of a constant."""', 2),
        ("a = '''Of a text.'''", None),
        ('"""Sum.\n\nArgs:\n  a: A number.\n  b: Of the\n    Who.\n"""', 5),
        ('"""Sum.\n\nAttributes:\n  a (int): What it is.\n"""', 4),
        ('"""Sum.\n\nReturns:\n  What is\n  Who.\n"""', 4),
        ('"""Sum.\n\nRaises:\n  ValueError: Of course.\n"""', 4),
        ('"""Sum.\n\nExample:\n  a: What\n\nIt is.\n"""', None),
    ],
)
def test_a_python_text_that_begins_badly_is_found(source, line):
    assert [int(fault.split(":")[0]) for fault in python_faults(source)] == (
        [] if line is None else [line]
    )


def test_names_of_tests_have_at_most_60_characters():
    names = re.compile(r"^ *(?:async )?def (test_\w{56,})", re.MULTILINE)
    texts = (path.read_text(encoding="utf-8") for path in python_files())
    assert not [name for text in texts for name in names.findall(text)]
