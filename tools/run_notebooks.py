# SPDX-License-Identifier: Apache-2.0
"""Executes notebooks from the first cell to the last; fails at the first error.

    python tools/run_notebooks.py notebooks/*.ipynb
    python tools/run_notebooks.py --environment tf-agents notebooks/*.ipynb

The kernel is this interpreter. A notebook names what has to be installed there in its metadata,
`"reverb": {"environment": "tf-agents"}`; with `--environment` only those that name it are run. With
REVERB_NOTEBOOK_QUICK=1 in the environment they use small settings. The files stay as they are;
`--executed DIRECTORY` writes copies with their output.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
import time

import nbformat
from nbclient import NotebookClient

# For one cell.
TIMEOUT_S = 600


def main() -> int:
    """Returns 0 when every cell of every notebook that was chosen ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=pathlib.Path)
    parser.add_argument("--environment", help="runs only the notebooks made for it; default: all")
    parser.add_argument("--executed", type=pathlib.Path, help="directory for the executed copies")
    arguments = parser.parse_args()
    count = 0
    for path in arguments.notebooks:
        notebook = nbformat.read(path, as_version=4)
        if arguments.environment not in (None, environment_of(path, notebook)):
            continue
        run(path, notebook)
        if arguments.executed:
            arguments.executed.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, arguments.executed / path.name)
        count += 1
    if count == 0:
        print(f"no notebook is made for {arguments.environment!r}", file=sys.stderr)
        return 2
    return 0


def environment_of(path: pathlib.Path, notebook: nbformat.NotebookNode) -> str:
    """Returns what a notebook says has to be installed."""
    environment = notebook.metadata.get("reverb", {}).get("environment")
    if environment is None:
        raise SystemExit(f"{path}: its metadata lacks 'reverb': {{'environment': ...}}")
    return environment


def run(path: pathlib.Path, notebook: nbformat.NotebookNode) -> None:
    """Runs a notebook and says how long it took."""
    started = time.monotonic()
    # In a directory without sources: the kernel imports what is installed.
    with tempfile.TemporaryDirectory() as directory:
        NotebookClient(
            notebook,
            timeout=TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": directory}},
        ).execute()
    print(f"{path}: ran in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
