# SPDX-License-Identifier: Apache-2.0
"""Prints what building, running and the named extras of a pyproject.toml need, for pip.

    python tools/requirements.py pyproject.toml test lint

pip can install a project's extras only together with the project; here they come first, so that a
change of the Rust code does not install anything again.
"""

from __future__ import annotations

import pathlib
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib


def main() -> int:
    """Prints one requirement a line, without spaces, so that a shell may split them."""
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
