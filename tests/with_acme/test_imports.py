# SPDX-License-Identifier: Apache-2.0
"""Imports of the adapters, and modules that they must not import."""

import json
import pathlib
import pkgutil
import subprocess
import sys

import reverb
from reverb.adapters import acme

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(acme.__path__, f"{acme.__name__}.")
)

PROGRAM = """
import importlib, json, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "jax", "acme", "launchpad", "dm_env"):
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, Refuse())
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print("imported")
"""


def test_modules_need_neither_tensorflow_nor_acme():
    assert "reverb.adapters.acme.adders.transition" in MODULES
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(MODULES)],
        cwd=pathlib.Path(reverb.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("imported\n", "")


def test_the_modules_that_stand_in_for_those_of_acme():
    for name in ("adders", "datasets", "replay", "reverb_utils", "specs", "types"):
        assert f"reverb.adapters.acme.{name}" in MODULES
