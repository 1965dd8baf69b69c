# SPDX-License-Identifier: Apache-2.0
"""The quick start of the README runs as it stands there."""

from __future__ import annotations

import pathlib
import re

import pytest

README = pathlib.Path(__file__).parents[2] / "README.md"

# What stands behind `python` names the library that a block needs besides.
_BLOCK = r"^```python{library}\n(.*?)^```$"


def python_blocks(text: str, library: str = "") -> list[str]:
    """Returns the blocks for a library, each behind as many lines as stand before it."""
    return [
        "\n" * text.count("\n", 0, match.start(1)) + match.group(1)
        for match in re.finditer(_BLOCK.format(library=library), text, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize(("library", "count"), [("", 6), (" acme", 1)])
def test_python_blocks_run_one_after_another(library, count):
    blocks = python_blocks(README.read_text(encoding="utf-8"), library)
    assert len(blocks) == count
    names: dict[str, object] = {"__name__": "readme"}
    try:
        for block in blocks:
            exec(compile(block, str(README), "exec"), names)
    finally:
        if "server" in names:
            names["server"].stop()


def test_python_blocks_keep_their_line_numbers():
    text = "# Title\n\n```python\na = 1\n```\n\ntext\n\n```python\nb = 2\n```\n"
    first, second = python_blocks(text)
    assert first.splitlines()[3] == "a = 1"
    assert second.splitlines()[9] == "b = 2"
