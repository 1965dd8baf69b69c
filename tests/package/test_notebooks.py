# SPDX-License-Identifier: Apache-2.0
"""The notebooks open in Colab, at the address in pyproject.toml, and install only there."""

import json

import pytest

from support.sources import ROOT, project

NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


def cells(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
class TestNotebooks:
    def test_the_badge_has_the_address_of_the_project(self, path):
        repository = project()["urls"]["Repository"].removeprefix("https://github.com/")
        address = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks"
        assert f"({address}/{path.name})" in cells(path)[0][1]
        assert "after the first release" in cells(path)[0][1]

    def test_packages_are_installed_only_in_colab(self, path):
        code = [source for kind, source in cells(path) if kind == "code"]
        beginning = 'import sys\n\nif "google.colab" in sys.modules:\n    '
        assert code[0].startswith(beginning)
        lines = code[0].splitlines()[3:]
        assert all(line.startswith(("    %pip install -q ", "    # ")) for line in lines)
        assert "reverb-replay" in code[0]
        assert not any("pip install" in source for source in code[1:])

    def test_there_is_no_stored_output(self, path):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert not any(cell.get("outputs") for cell in notebook["cells"])
