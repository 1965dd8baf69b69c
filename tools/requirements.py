# SPDX-License-Identifier: Apache-2.0
"""Prints the requirements of a pyproject.toml for pip: to build, to run, and those of extras.

    python tools/requirements.py pyproject.toml test lint

pip can install a project's extras only together with the project. Here they are installed first, so
that a change of the Rust code does not reinstall them.
"""

from __future__ import annotations

import pathlib
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib


def main() -> int:
    """Prints one requirement per line, without spaces, so that a shell can split them."""
    path, *extras = sys.argv[1:]
    pyproject = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    requirements = pyproject["build-system"]["requires"] + pyproject["project"]["dependencies"]
    for extra in extras:
        requirements += pyproject["project"]["optional-dependencies"][extra]
    for requirement in requirements:
        print(requirement.replace(" ", ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
