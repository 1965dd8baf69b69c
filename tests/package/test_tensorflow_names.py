# SPDX-License-Identifier: Apache-2.0
"""The names that need TensorFlow, where there is none, or one that will not do."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

import reverb

NAMES = sorted(reverb._TENSORFLOW_NAMES)
MODULES = ["pattern_dataset", "tf_client", "tf_ops", "timestep_dataset", "trajectory_dataset"]


def test_type_checkers_see_each_name_in_the_same_module():
    source = pathlib.Path(reverb.__file__).read_text(encoding="utf-8")
    seen = re.findall(r"^    from reverb\.([\w.]+) import (\w+) as \2$", source, re.MULTILINE)
    assert reverb._TENSORFLOW_NAMES.items() <= {name: module for module, name in seen}.items()


# Stands in for TensorFlow, as far as `reverb.tf_ops` looks before it hands over its ops.
STAND_IN = """
import json, pathlib, sys, types

def stand_in(version, wrappers=()):
    module = types.ModuleType("tensorflow")
    module.__version__ = version
    module.errors = types.SimpleNamespace(OpError=RuntimeError)
    module.load_op_library = lambda path: types.SimpleNamespace(**dict.fromkeys(wrappers))
    return module

def complaint(call):
    try:
        call()
    except ImportError as error:
        return str(error)

def load():
    import reverb.tf_ops
"""


def run(program):
    """The JSON that a program prints, in a new interpreter."""
    command = [sys.executable, "-c", STAND_IN + program]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def without_tensorflow():
    """The error of each name without TensorFlow."""
    return run(f"""
sys.modules["tensorflow"] = None
import reverb
names = {NAMES + MODULES}
print(json.dumps({{name: complaint(lambda: getattr(reverb, name)) for name in names}}))
""")


@pytest.mark.parametrize("name", [*NAMES, *MODULES])
def test_without_tensorflow_every_name_says_what_to_install(without_tensorflow, name):
    text = without_tensorflow[name]
    assert text.startswith(
        "The TensorFlow part of reverb needs TensorFlow 2.12 or later, which cannot be imported."
    )
    assert "`pip install 'tensorflow>=2.14'`" in text


def test_an_old_tensorflow_is_refused():
    text = run("""
sys.modules["tensorflow"] = stand_in("2.11.1")
print(json.dumps(complaint(load)))
""")
    assert text == (
        "The TensorFlow part of reverb needs TensorFlow 2.12 or later, found 2.11.1. "
        "Update it with `pip install --upgrade tensorflow`."
    )


def test_a_missing_library_is_named():
    text = run("""
sys.modules["tensorflow"] = stand_in("2.15.0", ["reverb_replay_sampler_create"])
load()
import reverb.tf_ops
shim = pathlib.Path("/nowhere/tf_ops/_reverb_ops.so")
print(json.dumps(complaint(lambda: reverb.tf_ops._load(shim))))
""")
    assert text.startswith(
        "This installation of reverb lacks its TensorFlow part: _reverb_ops.so is missing in "
        "/nowhere."
    )
    assert "`pip install --force-reinstall .` in a clone" in text
    assert "`pip install --force-reinstall reverb-replay` for a release" in text


def test_a_library_without_ops_is_noticed():
    text = run("""
sys.modules["tensorflow"] = stand_in("2.15.0")
print(json.dumps(complaint(load)))
""")
    assert "found no ops in it" in text


def test_the_address_of_the_ops_does_not_stay_in_the_environment():
    left = run("""
import os
sys.modules["tensorflow"] = stand_in("2.15.0", ["reverb_replay_sampler_create"])
load()
print(json.dumps("REVERB_REPLAY_REGISTER" in os.environ))
""")
    assert left is False


def test_a_star_import_leaves_tensorflow_alone():
    assert not {*NAMES, *MODULES} & set(reverb.__all__)
