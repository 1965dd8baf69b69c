# SPDX-License-Identifier: Apache-2.0
"""The programs of the cookbook, and what they need."""

import pathlib
import re

PROGRAMS = sorted((pathlib.Path(__file__).parents[2] / "examples" / "cookbook").glob("*.py"))


def needs(program: pathlib.Path) -> str | None:
    """The libraries that a program needs, as its docstring says it; None for NumPy alone."""
    found = re.search(r"\bNeeds ([\w ]+)\.", program.read_text("utf-8").split('"""')[1])
    return found[1] if found else None
