# SPDX-License-Identifier: Apache-2.0
"""The extras for other libraries name the versions that are tested beside them."""

import pathlib
import re
import sys

import pytest

from reverb.datasets.formats import FORMATS

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


# For people who work on the package.
OURS = {"test", "lint", "learners", "jax-demo", "demo", "docs", "release", "notebooks"}


def test_the_page_about_installing_names_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert sorted(named) == sorted(set(project["optional-dependencies"]) - OURS)


def test_pages_install_extras_that_there_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        lines = re.findall(r"pip install.*", page.read_text(encoding="utf-8"))
        for extras in re.findall(r"(?:\.|reverb-replay)\[([\w,-]+)\]", "\n".join(lines)):
            assert set(extras.split(",")) <= {*project["optional-dependencies"], "extra"}, page


def test_the_environment_of_datasets_has_every_format():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = makefile.partition("\n$(DATASETS_ENV)/.setup-done")[2]
    names = re.search(r"--extras ([\w,-]+)", rule)[1].split(",")
    # Parquet's is in that of the tests.
    assert set(FORMATS) - {"npz", "parquet"} <= set(names)


ADAPTERS = sorted(path.parent.name for path in ROOT.glob("reverb/adapters/*/__init__.py"))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_has_all_its_places(adapter):
    """Fails for a place that was forgotten; CONTRIBUTING.md has the recipe."""
    name = adapter.replace("_", "-")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert name in project["optional-dependencies"]
    (page,) = (ROOT / "docs" / "howto").glob(f"*{name}.md")
    for start in ("README.md", "docs/index.md"):
        assert f"howto/{page.name})" in (ROOT / start).read_text(encoding="utf-8")
    assert f"({page.name})" in (ROOT / "docs" / "howto" / "index.md").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "reference" / "index.rst").read_text(encoding="utf-8")
    assert f"   {adapter}\n" in index
    assert (ROOT / "docs" / "reference" / f"{adapter}.rst").is_file()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert any((ROOT / "tests" / f"with_{adapter}").glob("test_*.py"))
    assert f"`with_{adapter}/`" in (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    # A library beside TensorFlow has a list, for each environment, of what has to come out.
    if not re.search(rf"^INTEGRATION_ENVS := .*\b{name}-", makefile, re.MULTILINE):
        assert re.search(rf"^test-{name}: ", makefile, re.MULTILINE)
        assert re.search(rf"\btest-{name}\b", makefile.split("\ntest-all: ")[1].split("\n\n")[0])
        assert re.search(rf"^\.PHONY: .*\btest-{name}\b", makefile, re.MULTILINE)
