# SPDX-License-Identifier: Apache-2.0
"""Installs requirements into an environment, and makes it first if it is not there.

    python tools/install.py .venvs/ray --extras test,ray
    python tools/install.py .venvs/tf-2.21 --extras test tensorflow-cpu==2.21.*
    python tools/install.py .venvs/acme-2.15 --pins tests/integrations/requirements/acme-2.15

Extras are those of pyproject.toml, whose requirements are installed without the project, so that a
change of Rust code does not reinstall them; what the project needs to be built and to run is
installed with them. With pins, PATH.txt is installed as it resolves, then PATH.no-deps.txt without
dependencies.

uv installs, if it can be had: a package that another environment has is linked and takes a second,
not a copy. Otherwise pip does.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import pathlib
import subprocess
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIP = ["-m", "pip", "--disable-pip-version-check"]
UV = [sys.executable, "-m", "uv"]
# The variable of uv for each setting of pip.
VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}


def main() -> int:
    """Makes the environment of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environment", type=pathlib.Path)
    parser.add_argument("requirements", nargs="*")
    parser.add_argument("--python", default=sys.executable, help="interpreter of a new environment")
    parser.add_argument("--extras", default="", help="extras of pyproject.toml, with commas")
    parser.add_argument("--pins", help="path of requirements without .txt")
    options = parser.parse_intermixed_args()
    python = options.environment / "bin" / "python"
    if not python.exists():
        subprocess.run([options.python, "-m", "venv", options.environment], check=True)
    requirements = [*options.requirements]
    if options.extras:
        requirements += of_project(options.extras.split(","))
    if options.pins:
        requirements += ["--requirement", f"{options.pins}.txt"]
    install(python, requirements)
    if options.pins and pathlib.Path(f"{options.pins}.no-deps.txt").exists():
        install(python, ["--no-deps", "--requirement", f"{options.pins}.no-deps.txt"])
    return 0


def of_project(extras: list[str]) -> list[str]:
    """The requirements to build the project, to run it, and those of extras."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = pyproject["build-system"]["requires"] + pyproject["project"]["dependencies"]
    for extra in extras:
        requirements += pyproject["project"]["optional-dependencies"][extra]
    return requirements


def install(python: pathlib.Path, arguments: list[str]) -> None:
    """Installs with uv, or with pip where that fails; ends the program if both fail."""
    uv = [*UV, "pip", "install", "--quiet", "--python", str(python), *arguments]
    if can_use_uv() and subprocess.run(uv, env=settings_of_pip(), check=False).returncode == 0:
        return
    print(f"{python.parent.parent}: pip installs, because uv cannot", file=sys.stderr)
    pip = [str(python), *PIP, "install", "--quiet", *arguments]
    if subprocess.run(pip, check=False).returncode != 0:
        sys.exit(f"{python.parent.parent} was not installed; the lines above say why")


def can_use_uv() -> bool:
    """Returns true if uv is beside this interpreter, where pip puts it if it can."""
    if importlib.util.find_spec("uv"):
        return True
    return subprocess.run([sys.executable, *PIP, "install", "--quiet", "uv"]).returncode == 0


def settings_of_pip() -> dict[str, str]:
    """The environment variables for uv: pip's index and certificates, if it has others."""
    variables = dict(os.environ)
    found = subprocess.run([sys.executable, *PIP, "config", "list"], capture_output=True, text=True)
    for line in found.stdout.splitlines():
        key, _, value = line.partition("=")
        variable = VARIABLES.get(key.rpartition(".")[2])
        if variable:
            variables.setdefault(variable, str(ast.literal_eval(value)))
    return variables


if __name__ == "__main__":
    sys.exit(main())
