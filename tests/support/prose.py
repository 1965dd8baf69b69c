# SPDX-License-Identifier: Apache-2.0
"""The text of a page of the documentation or of a notebook."""

import json
import pathlib
import re


def prose(path: pathlib.Path) -> str:
    """The text of a page in Markdown, or of a notebook, without blocks of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(it["source"]) for it in cells if it["cell_type"] == "markdown")
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
