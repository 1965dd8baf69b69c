# SPDX-License-Identifier: Apache-2.0
"""Executes notebooks from the first cell to the last; fails at the first error.

    python tools/run_notebooks.py notebooks/*.ipynb

The kernel is this interpreter. The files stay as they are.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import time

import nbformat
from nbclient import NotebookClient

# For one cell.
TIMEOUT_S = 600


def main() -> int:
    """Returns 0 when every cell of every notebook ran."""
    paths = [pathlib.Path(argument) for argument in sys.argv[1:]]
    if not paths:
        print("no notebook was named", file=sys.stderr)
        return 2
    for path in paths:
        started = time.monotonic()
        notebook = nbformat.read(path, as_version=4)
        # In a directory without sources: the kernel imports what is installed.
        with tempfile.TemporaryDirectory() as directory:
            NotebookClient(
                notebook,
                timeout=TIMEOUT_S,
                kernel_name="python3",
                resources={"metadata": {"path": directory}},
            ).execute()
        print(f"{path}: ran in {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
