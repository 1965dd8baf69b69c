# SPDX-License-Identifier: Apache-2.0
"""The build backend: builds the library that TensorFlow loads, then calls maturin.

Has the hooks of PEP 517 and PEP 660, for `pip install .`, `pip install -e .` and `python -m build`.
maturin builds one library for the wheel, the native module; the other one, a few kilobytes, must
exist before. To build only that library, for this system or for an old glibc:

    python tools/build_backend.py
    python tools/build_backend.py --target x86_64-unknown-linux-gnu --glibc 2.17
"""

from __future__ import annotations

import argparse
import json
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
# The same name on every platform; TensorFlow opens any file name.
SHIM = ROOT / "reverb" / "tf_ops" / "_reverb_ops.so"


def build_wheel(*args: Any, **kwargs: Any) -> str:
    """Builds a wheel with both libraries; arguments and result are those of PEP 517."""
    build_shim()
    return maturin.build_wheel(*args, **kwargs)


def build_editable(*args: Any, **kwargs: Any) -> str:
    """Builds both libraries into the source tree; arguments and result are those of PEP 660."""
    build_shim()
    return maturin.build_editable(*args, **kwargs)


def build_shim(target: str | None = None, glibc: str | None = None) -> None:
    """Compiles the library that TensorFlow loads and puts it at `SHIM`.

    Args:
      target: The platform, as Rust names it; by default this one.
      glibc: The release of glibc to link with, by Zig; needs `target`, cargo-zigbuild and ziglang.
        By default what the system has.

    Raises:
      subprocess.CalledProcessError: If cargo failed; it has printed the reason.
    """
    command = ["cargo", "build" if glibc is None else "zigbuild"]
    if target is not None:
        command += ["--target", target if glibc is None else f"{target}.{glibc}"]
    command += ["--package", "reverb-ops-shim", "--profile", "shim"]
    messages = subprocess.run(
        [*command, "--message-format", "json-render-diagnostics"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    # The target directory depends on cargo's configuration, so the path is in cargo's messages.
    (library,) = (
        path
        for message in map(json.loads, messages.splitlines())
        if message.get("target", {}).get("name") == "reverb_ops_shim"
        for path in message.get("filenames", ())
    )
    # A process that has loaded the old file keeps it.
    built = SHIM.with_suffix(".new")
    shutil.copyfile(library, built)
    built.replace(SHIM)


def main() -> None:
    """Builds only the library that TensorFlow loads."""
    parser = argparse.ArgumentParser(description=build_shim.__doc__.partition("\n")[0])
    parser.add_argument("--target")
    parser.add_argument("--glibc")
    build_shim(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
