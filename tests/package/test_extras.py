# SPDX-License-Identifier: Apache-2.0
"""The extras for other libraries name the versions that are tested beside them."""

import pathlib
import re
import sys

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = pathlib.Path(__file__).parents[2]
REQUIREMENTS = ROOT / "tests" / "integrations" / "requirements"


def pins(lines):
    found = (re.fullmatch(r"([\w-]+)==([\w.*]+)", line) for line in lines)
    # The tests take the build without the parts for GPUs.
    return {match[1].replace("-cpu", ""): match[2] for match in found if match}


@pytest.mark.parametrize("extra", ["tf-agents", "acme"])
def test_extras_have_the_versions_of_the_tests(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = pins((REQUIREMENTS / f"{extra}-2.15.txt").read_text(encoding="utf-8").splitlines())
    wanted = pins(project["optional-dependencies"][extra])
    assert wanted
    for name, version in wanted.items():
        assert re.fullmatch(version.replace(".*", r"\..*"), tested[name]), name
