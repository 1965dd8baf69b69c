# SPDX-License-Identifier: Apache-2.0
"""The quick start of the README runs as it stands there."""

from __future__ import annotations

import pathlib
import re

README = pathlib.Path(__file__).parents[1] / "README.md"

_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_blocks(text: str) -> list[str]:
    """Returns the Python blocks, each behind as many empty lines as stand before it in the file."""
    return [
        "\n" * text.count("\n", 0, match.start(1)) + match.group(1)
        for match in _PYTHON_BLOCK.finditer(text)
    ]


def test_python_blocks_run_one_after_another():
    blocks = python_blocks(README.read_text(encoding="utf-8"))
    assert len(blocks) == 5
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
