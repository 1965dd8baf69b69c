# SPDX-License-Identifier: Apache-2.0
"""The programs of the cookbook, and what they need."""

import pathlib
import re
import subprocess
import sys

PROGRAMS = sorted((pathlib.Path(__file__).parents[2] / "examples" / "cookbook").glob("*.py"))


def needs(program: pathlib.Path) -> str | None:
    """The libraries that a program needs, as its docstring says it; None for NumPy alone."""
    found = re.search(r"\bNeeds ([\w ]+)\.", program.read_text("utf-8").split('"""')[1])
    return found[1] if found else None


def run(program: pathlib.Path, directory: pathlib.Path, timeout_s: float) -> None:
    """Runs a program in an empty directory, and asserts that it succeeds."""
    done = subprocess.run(
        [sys.executable, program],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
