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


def files(*patterns):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
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


def python_texts(source):
    yield from python_comments(source)
    for line, docstring in python_docstrings(source):
        yield line, docstring
        yield from ((line + at, entry) for at, entry in docstring_entries(docstring))


def rust_texts(source):
    """Yields line and text of each block of comments, and of each comment behind code.

    Comments of proto files look the same.
    """
    last = None
    for row, line in enumerate(source.splitlines(), 1):
        block = re.match(r"\s*(//[/!]?)(?!/)\W*(.*)", line)
        behind = re.search(r"\S\s+// \W*(.*)", line)
        if block and block[1] != last:
            yield row, block[2]
        elif behind and not block:
            yield row, behind[1]
        last = block and block[1]


LANGUAGES = {
    "python": (("*.py", "*.pyi"), python_texts),
    "rust": (("*.rs", "*.proto"), rust_texts),
}


def faults(language, source):
    """Line and text of each bad beginning in a source of this language."""
    if not BAD_FIRST_WORD.search(source):
        return []  # Most files, and much faster.
    _, texts_of = LANGUAGES[language]
    bad = [(line, text) for line, text in texts_of(source) if BAD_FIRST_WORD.match(text)]
    return [f"{line}: {text.splitlines()[0]}" for line, text in sorted(bad)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_begin_with_a_noun_or_a_verb(language):
    patterns, _ = LANGUAGES[language]
    assert not {
        str(path.relative_to(ROOT)): found
        for path in files(*patterns)
        if (found := faults(language, path.read_text(encoding="utf-8")))
    }


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
    found = [int(fault.split(":")[0]) for fault in faults("python", source)]
    assert found == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("/// What it is.\nlet a = 1;", 1),
        ("    // Who waits.", 1),
        ("//! Of the map;\n//! 0 without one.", 1),
        ("/// A block\n/// Of two lines.\nlet a = 1;", None),
        ("/// A number.\n// Whose number it is.", 2),
        ("let a = 1; // Of both.", 1),
        ("/// `Whom` it trusts.", 1),
        ("/// Whatever, Offset, whose.", None),
        ('let url = "http://What.is";', None),
        ("//", None),
    ],
)
def test_a_rust_comment_that_begins_badly_is_found(source, line):
    found = [int(fault.split(":")[0]) for fault in faults("rust", source)]
    assert found == ([] if line is None else [line])


def test_names_of_tests_have_at_most_60_characters():
    names = re.compile(r"^ *(?:async )?def (test_\w{56,})", re.MULTILINE)
    texts = (path.read_text(encoding="utf-8") for path in files("*.py"))
    assert not [name for text in texts for name in names.findall(text)]
