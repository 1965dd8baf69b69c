# SPDX-License-Identifier: Apache-2.0
"""The snippets of the README that need TensorFlow run as they stand there."""

import pathlib
import re

README = pathlib.Path(__file__).parents[2] / "README.md"

_TENSORFLOW_BLOCK = re.compile(r"^```python tensorflow\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_tensorflow_blocks_run_one_after_another():
    text = README.read_text(encoding="utf-8")
    blocks = list(_TENSORFLOW_BLOCK.finditer(text))
    assert len(blocks) == 2
    names = {"__name__": "readme"}
    try:
        for block in blocks:
            # Empty lines in front, so that an error names the line of the file.
            source = "\n" * text.count("\n", 0, block.start(1)) + block.group(1)
            exec(compile(source, str(README), "exec"), names)
    finally:
        if "server" in names:
            names["server"].stop()
