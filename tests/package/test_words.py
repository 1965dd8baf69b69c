# SPDX-License-Identifier: Apache-2.0
"""Comments begin with a noun or a verb, never with a word that makes a clause of them."""

import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "reverb"
FORBIDDEN = ("What", "Who", "Whom", "Whose", "Whoever", "Of")


def rust_comments(text: str) -> Iterator[tuple[int, str]]:
    """Line and first words of each comment block, and of each comment behind code.

    Also reads proto files, whose comments look the same.
    """
    before = None
    for number, line in enumerate(text.splitlines(), 1):
        whole = re.match(r"\s*(//[/!]?)(?!/)\s*(.*)", line)
        behind = re.search(r"\S\s+// (.*)", line)
        if whole is not None and whole[1] != before:
            yield number, whole[2]
        elif whole is None and behind is not None:
            yield number, behind[1]
        before = None if whole is None else whole[1]


COMMENTS = {"rust": rust_comments}


def badly_begun(language: str, text: str, forbidden: tuple[str, ...] = FORBIDDEN) -> list[int]:
    """Lines of the comments that begin with a forbidden word."""
    begins = re.compile(rf"\W*({'|'.join(forbidden)})\b")
    return [line for line, words in COMMENTS[language](text) if begins.match(words)]


@pytest.mark.parametrize(
    "text",
    [
        "/// What it is.\nlet a = 1;\n",
        "    // Who waits.\n",
        "//! Of the map;\n//! 0 without one.\n",
        "/// Fine.\n// Whose it is.\n",
        "let a = 1; // Of both.\n",
        "/// `Whom` it trusts.\n",
    ],
)
def test_a_forbidden_word_is_found(text):
    assert len(badly_begun("rust", text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "/// Expected format: see\n/// What it is.\n",
        "/// Whatever, Offset, whose.\n",
        'let url = "http://What.is";\n',
        "//\n",
    ],
)
def test_other_comments_are_fine(text):
    assert badly_begun("rust", text) == []


@pytest.mark.parametrize("ending", ["rs", "proto"])
def test_comments_of_rust_and_of_messages_begin_plainly(ending):
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(PACKAGE.rglob(f"*.{ending}"))
        for line in badly_begun("rust", path.read_text(encoding="utf-8"))
    ]
    assert found == []
