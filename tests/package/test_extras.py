# SPDX-License-Identifier: Apache-2.0
"""The extras for other libraries name the versions that are tested beside them."""

import re

import pytest

from reverb.datasets.formats import FORMATS
from support.sources import ROOT, extra_of, project

EXTRAS = project()["optional-dependencies"]
REQUIREMENTS = ROOT / "tests" / "integrations" / "requirements"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

# The oldest environment beside TensorFlow for each library that has some.
BESIDE_TENSORFLOW: dict[str, str] = {}
for _env in re.search(r"^INTEGRATION_ENVS := (.*)", MAKEFILE, re.MULTILINE)[1].split():
    BESIDE_TENSORFLOW.setdefault(_env.rpartition("-")[0], _env)


def pins(lines):
    found = (re.fullmatch(r"([\w-]+)==([\w.*]+)", line) for line in lines)
    # The tests take the build without the parts for GPUs.
    return {match[1].replace("-cpu", ""): match[2] for match in found if match}


@pytest.mark.parametrize("extra", BESIDE_TENSORFLOW)
def test_extras_have_the_versions_of_the_tests(extra):
    tested = pins((REQUIREMENTS / f"{BESIDE_TENSORFLOW[extra]}.txt").read_text().splitlines())
    wanted = pins(EXTRAS[extra])
    assert wanted
    for name, version in wanted.items():
        assert re.fullmatch(version.replace(".*", r"\..*"), tested[name]), name


# For people who work on the package.
OURS = {"test", "lint", "learners", "jax-demo", "demo", "docs", "release", "notebooks"}


def test_the_page_about_installing_names_every_extra():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert sorted(named) == sorted(set(EXTRAS) - OURS)


def test_pages_install_extras_that_there_are():
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        lines = re.findall(r"pip install.*", page.read_text(encoding="utf-8"))
        for extras in re.findall(r"(?:\.|reverb-replay)\[([\w,-]+)\]", "\n".join(lines)):
            assert set(extras.split(",")) <= {*EXTRAS, "extra"}, page


def test_the_environment_of_datasets_has_every_format():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = makefile.partition("\n$(DATASETS_ENV)/.setup-done")[2]
    names = re.search(r"--extras ([\w,-]+)", rule)[1].split(",")
    # Parquet's is in that of the tests.
    assert set(FORMATS) - {"npz", "parquet"} <= set(names)


ADAPTERS = sorted(path.parent.name for path in ROOT.glob("reverb/adapters/*/__init__.py"))


# Pages that are named after the programs that import the library.
PAGES = {"transferqueue": "verl"}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_has_all_its_places(adapter):
    """Fails for a place that was forgotten; CONTRIBUTING.md has the recipe."""
    name = extra_of(adapter)
    assert name in EXTRAS
    (page,) = (ROOT / "docs" / "howto").glob(f"*{PAGES.get(name, name)}.md")
    for start in ("README.md", "docs/index.md"):
        assert f"howto/{page.name})" in (ROOT / start).read_text(encoding="utf-8")
    assert f"\nhowto/{page.stem}\n" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    title = re.search(r"^# .*?(\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)[1]
    rooms = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("* `adapters/`: ")[1]
    assert title in rooms.split("\n* ")[0]
    assert f"`reverb.adapters.{adapter}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"({page.name})" in (ROOT / "docs" / "howto" / "index.md").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "reference" / "index.rst").read_text(encoding="utf-8")
    assert f"   {adapter}\n" in index
    assert (ROOT / "docs" / "reference" / f"{adapter}.rst").is_file()
    assert any((ROOT / "tests" / f"with_{adapter}").glob("test_*.py"))
    assert f"`with_{adapter}/`" in (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    if name in BESIDE_TENSORFLOW:
        expected = (ROOT / "tests" / "integrations" / "expected.toml").read_text(encoding="utf-8")
        assert f'[{name}."tests/with_{adapter}"]' in expected
    else:
        env = re.search(rf"^test-{name}: \$\((\w+)\)/", MAKEFILE, re.MULTILINE)[1]
        setup = MAKEFILE.split(f"\n$({env})/.setup-done: ")[1].split("\n\n")[0]
        assert re.search(rf"--extras \S*\b{name}\b", setup)
        assert re.search(rf"\btest-{name}\b", MAKEFILE.split("\ntest-all: ")[1].split("\n\n")[0])
        assert re.search(rf"^\.PHONY: .*\btest-{name}\b", MAKEFILE, re.MULTILINE)
