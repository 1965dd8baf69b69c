# SPDX-License-Identifier: Apache-2.0
"""Builds the package: maturin, and before it the library that TensorFlow loads.

The hooks of PEP 517 and PEP 660, for `pip install .`, `pip install -e .` and `python -m build`.
maturin puts one library into a wheel, the native module; the other one, a few kilobytes, has to be
in its place before. As a program this file builds only that one:

    python tools/build_backend.py
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
from typing import Any

import maturin
from maturin import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = pathlib.Path(__file__).parents[1]
# The same name everywhere: TensorFlow opens what it is told to.
SHIM = ROOT / "reverb" / "tf_ops" / "_reverb_ops.so"


def build_wheel(*args: Any, **kwargs: Any) -> str:
    """Builds a wheel with both libraries; arguments and result are those of PEP 517."""
    build_shim()
    # What only a debugger reads is five sixths of the native module.
    os.environ.setdefault("MATURIN_PEP517_ARGS", "--strip")
    return maturin.build_wheel(*args, **kwargs)


def build_editable(*args: Any, **kwargs: Any) -> str:
    """Builds both libraries into the source tree; arguments and result are those of PEP 660."""
    build_shim()
    return maturin.build_editable(*args, **kwargs)


def build_shim() -> None:
    """Compiles the library that TensorFlow loads and puts it at `SHIM`.

    Raises:
      subprocess.CalledProcessError: If cargo failed; it has told why.
    """
    command = ["cargo", "build", "--package", "reverb-ops-shim", "--profile", "shim"]
    messages = subprocess.run(
        [*command, "--message-format", "json-render-diagnostics"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    # Where cargo builds depends on its configuration, so it is asked.
    (library,) = (
        path
        for message in map(json.loads, messages.splitlines())
        if message.get("target", {}).get("name") == "reverb_ops_shim"
        for path in message.get("filenames", ())
    )
    # A process that has the old file open keeps it.
    built = SHIM.with_suffix(".new")
    shutil.copyfile(library, built)
    built.replace(SHIM)


if __name__ == "__main__":
    build_shim()
