# SPDX-License-Identifier: Apache-2.0
"""The files that GitHub and pre-commit read: their schemas, and the commands that they call."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(
    set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"}
)
HOOKS = ROOT / ".pre-commit-config.yaml"

VALIDATED = [
    *((path, "vendor.github-workflows") for path in WORKFLOWS),
    *((path, "vendor.github-issue-forms") for path in FORMS),
    (GITHUB / "ISSUE_TEMPLATE/config.yml", "vendor.github-issue-config"),
]


@pytest.mark.parametrize(("path", "schema"), VALIDATED, ids=[path.stem for path, _ in VALIDATED])
def test_follows_its_schema(path, schema):
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip(
            "check-jsonschema, which has the schemas, is not here; `make setup` installs it"
        )
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("path", [*WORKFLOWS, HOOKS], ids=lambda path: path.stem)
def test_calls_targets_that_the_makefile_has(path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    called = re.findall(r"(?:run|entry): make ([a-z-]+)", path.read_text(encoding="utf-8"))
    assert called
    assert set(called) <= set(targets)


def test_a_fault_in_a_workflow_is_found(tmp_path):
    bad = tmp_path / "bad.yml"
    bad.write_text("on: push\njobs:\n  build:\n    steps: []\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="runs-on"):
        test_follows_its_schema(bad, "vendor.github-workflows")


# ---- The version and the ranges of a release -----------------------------------------------------

# A version as a setting, the tag of an image, or in an example of a report.
VERSION = re.compile(
    r"^(?:version|__version__) = \"(\d[\w.]*)\"|newTag: ([\w.]+)|reverb-replay[: ](\d[\w.]*)",
    re.MULTILINE,
)
MAIN_PLACES = ("Cargo.toml", "pyproject.toml", "reverb/__init__.py", "CHANGELOG.md")


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


def test_every_place_of_the_version_has_the_same():
    folders = (".github", "deploy", "docs/howto")
    paths = {*MAIN_PLACES, "README.md", "docs/install.md"}
    paths |= {str(path.relative_to(ROOT)) for name in folders for path in files_below(name)}
    found = {path: {"".join(hit) for hit in VERSION.findall(text_of(path))} for path in paths}
    newest = re.findall(r"^## \[(\d.*?)\]|the first will be (.*)\.$", text_of("CHANGELOG.md"), re.M)
    found["CHANGELOG.md"] = {"".join(hit) for hit in newest[:1]}
    assert all(found[path] for path in MAIN_PLACES)
    assert len(found["Cargo.toml"]) == 1
    others = sorted(path for path, versions in found.items() if versions - found["Cargo.toml"])
    assert not others, f"not the version of Cargo.toml: {', '.join(others)}"
    assert len([path for path, versions in found.items() if versions]) >= len(MAIN_PLACES) + 3


def files_below(folder):
    kinds = {".yml", ".yaml", ".md", ".service", ".txt", ".toml"}
    return (path for path in (ROOT / folder).rglob("*") if path.suffix in kinds)


def test_every_list_of_pythons_has_the_same_ends():
    makefile, (first,) = (
        text_of("Makefile"),
        set(re.findall(r'">=(3\.\d+)"', text_of("pyproject.toml"))),
    )
    tested = re.findall(r"python(3\.\d+)", re.search(r"^PYTHONS \?= (.*)", makefile, re.M)[1])
    assert tested[0] == first
    workflows = "".join(text_of(path) for path in WORKFLOWS)
    matrices = re.findall(r"^ +python: \[(.*)\]", workflows, re.MULTILINE)
    assert matrices
    assert all(re.findall(r'"(.*?)"', matrix) == tested for matrix in matrices)
    assert f"on Python {' and '.join(tested)}," in text_of("CONTRIBUTING.md")
    for page in ("README.md", "docs/index.md", "docs/install.md", "CONTRIBUTING.md", ".ci/run"):
        assert re.search(rf"{re.escape(first)} or\s+later", text_of(page)), page


def test_every_list_of_tensorflows_has_the_same():
    tested = re.search(r"^TF \?= (.*)", text_of("Makefile"), re.MULTILINE)[1].split()
    said = f"{', '.join(tested[:-1])} and {tested[-1]}"
    assert f"beside TensorFlow {said}," in text_of("CONTRIBUTING.md")
    rows = re.findall(r"^\| (2\.\d+)\.\d+ \|", text_of("docs/howto/tensorflow.md"), re.MULTILINE)
    assert rows == tested
    ends = re.search(r"^export TF='(.*?)'", text_of(".ci/run"), re.MULTILINE)[1].split()
    assert ends == [tested[0], tested[-1]]
