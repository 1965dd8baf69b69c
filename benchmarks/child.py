# SPDX-License-Identifier: Apache-2.0
"""One case in one process: `child.py CASE [--quick]` prints its figures as JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
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
    figures = cases.by_name(arguments.case).run(measure.Scale(quick=arguments.quick))
    print(json.dumps({name: figure.to_json() for name, figure in figures.items()}))


def _version() -> str:
    for name in ("reverb-replay", "dm-reverb"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return f"{name} {version}, Python {platform.python_version()}"
    raise SystemExit("neither reverb-replay nor dm-reverb is installed here")


if __name__ == "__main__":
    main()
