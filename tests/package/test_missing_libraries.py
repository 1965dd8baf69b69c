# SPDX-License-Identifier: Apache-2.0
"""Adapters without their libraries: what they say, and that nobody needs them."""

import re
import subprocess
import sys

import pytest

from reverb.datasets.formats import FORMATS
from support.sources import ROOT, extra_of, project

EXTRAS = project()["optional-dependencies"]

PROGRAM = """
import sys
sys.modules[{module!r}] = None
import reverb
try:
    import reverb.adapters.{name}
except ModuleNotFoundError as error:
    print(error.name, error)
"""


def libraries():
    """Adapters and the modules that they need, without the libraries beside TensorFlow."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    beside_tensorflow = re.search(r"^INTEGRATION_ENVS := (.*)", makefile, re.MULTILINE)[1]
    names = sorted(path.parent.name for path in ROOT.glob("reverb/adapters/*/__init__.py"))
    for name in names:
        if f"{extra_of(name)}-" not in beside_tensorflow:
            requirement, *_ = EXTRAS[extra_of(name)]
            yield name, re.split(r"[^\w-]", requirement)[0].replace("-", "_")


LIBRARIES = dict(libraries())


@pytest.mark.parametrize(("name", "module"), LIBRARIES.items())
def test_an_adapter_says_what_to_install(name, module):
    program = PROGRAM.format(name=name, module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{module} reverb.adapters.{name} needs ")
    # The library itself, which can be installed whatever this package was installed from.
    requirement, *_ = EXTRAS[extra_of(name)]
    assert f"pip install '{requirement}'" in done.stdout


@pytest.mark.parametrize(
    ("extra", "source"),
    [
        ("top", "reverb/command/top/__init__.py"),
        ("tensorflow", "reverb/tf_ops/__init__.py"),
    ],
)
def test_other_texts_name_the_requirement_of_the_extra(extra, source):
    (requirement,) = EXTRAS[extra]
    assert f"pip install '{requirement}'" in (ROOT / source).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [it for it in FORMATS if it != "npz"])
def test_formats_of_datasets_name_the_requirement_of_the_extra(name):
    files = (ROOT / "reverb" / "datasets" / "formats").glob("*.py")
    sources = "".join(it.read_text(encoding="utf-8") for it in files)
    assert f'"{EXTRAS[name][0]}"' in sources


def test_no_text_installs_an_extra_of_a_release():
    texts = [path for path in ROOT.glob("reverb/**/*.py") if "reverb-replay[" in path.read_text()]
    assert texts == []


@pytest.mark.parametrize("module", LIBRARIES.values())
def test_the_docs_are_built_without_them(module):
    source = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    assert f'"{module}",' in source.partition("_LIBRARIES = [")[2].partition("]")[0]


def test_the_package_imports_none_of_them():
    program = (
        f"import sys, reverb; print([it for it in {[*LIBRARIES.values()]} if it in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
