# SPDX-License-Identifier: Apache-2.0
"""One case in one process: `child.py CASE [--quick]` prints its figures as JSON."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import platform

import cases
import measure


def main() -> None:
    """Runs the case that is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="?")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--version", action="store_true", help="print what would be measured")
    arguments = parser.parse_args()
    if arguments.version:
        print(_version())
        return
    case = cases.by_name(arguments.case)
    missing = [name for name in case.needs if importlib.util.find_spec(name) is None]
    if missing:
        print(json.dumps({"skipped": f"this interpreter has no {', '.join(missing)}"}))
        return
    figures = case.run(measure.Scale(quick=arguments.quick))
    print(json.dumps({name: figure.to_json() for name, figure in figures.items()}))


def _version() -> str:
    for name in ("reverb-replay", "dm-reverb"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return f"{name} {version}, {_tensorflow()}Python {platform.python_version()}"
    raise SystemExit("neither reverb-replay nor dm-reverb is installed here")


def _tensorflow() -> str:
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"TensorFlow {importlib.metadata.version(name)}, "
    return ""


if __name__ == "__main__":
    main()
