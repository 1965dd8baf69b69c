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
