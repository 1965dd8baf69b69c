# SPDX-License-Identifier: Apache-2.0
"""Executes all cells of notebooks; fails at the first error.

    python tools/run_notebooks.py notebooks/*.ipynb
    python tools/run_notebooks.py --environment tf-agents notebooks/*.ipynb

The kernel is this interpreter. The metadata of a notebook names its environment,
`"reverb": {"environment": "tf-agents"}`; with `--environment` only notebooks of that environment
are run. With REVERB_NOTEBOOK_QUICK=1 in the environment they use small settings. The files are not
changed.
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
    """Returns 0 if every cell of the selected notebooks ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=pathlib.Path)
    parser.add_argument("--environment", help="runs only the notebooks made for it; default: all")
    arguments = parser.parse_args()
    count = 0
    for path in arguments.notebooks:
        notebook = nbformat.read(path, as_version=4)
        if arguments.environment not in (None, environment_of(path, notebook)):
            continue
        run(path, notebook)
        count += 1
    if count == 0:
        print(f"no notebook is made for {arguments.environment!r}", file=sys.stderr)
        return 2
    return 0


def environment_of(path: pathlib.Path, notebook: nbformat.NotebookNode) -> str:
    """Returns the environment that a notebook names."""
    environment = notebook.metadata.get("reverb", {}).get("environment")
    if environment is None:
        raise SystemExit(f"{path}: its metadata lacks 'reverb': {{'environment': ...}}")
    return environment


def run(path: pathlib.Path, notebook: nbformat.NotebookNode) -> None:
    """Runs a notebook and prints how long it took."""
    started = time.monotonic()
    # In a directory without sources, so that the kernel imports the installed package.
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
