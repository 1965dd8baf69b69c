# SPDX-License-Identifier: Apache-2.0
"""The snippet of the README that needs TF-Agents runs as it stands there."""

import pathlib
import re

README = pathlib.Path(__file__).parents[3] / "README.md"

_BLOCK = re.compile(r"^```python tf-agents\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_block_for_tf_agents_runs():
    text = README.read_text(encoding="utf-8")
    (block,) = _BLOCK.finditer(text)
    # Empty lines in front, so that an error names the line of the file.
    source = "\n" * text.count("\n", 0, block.start(1)) + block.group(1)
    names = {"__name__": "readme"}
    try:
        exec(compile(source, str(README), "exec"), names)
    finally:
        if "server" in names:
            names["server"].stop()
