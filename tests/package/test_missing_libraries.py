# SPDX-License-Identifier: Apache-2.0
"""Adapters without their libraries: what they say, and that nobody needs them."""

import subprocess
import sys

import pytest

# Adapters, and the modules that they need.
LIBRARIES = {
    "torch": "torch",
    "jax": "jax",
    "gymnasium": "gymnasium",
    "ray": "ray",
    "sb3": "stable_baselines3",
    "torchrl": "torchrl",
}

PROGRAM = """
import sys
sys.modules[{module!r}] = None
import reverb
try:
    import reverb.adapters.{name}
except ModuleNotFoundError as error:
    print(error.name, error)
"""


@pytest.mark.parametrize(("name", "module"), LIBRARIES.items())
def test_an_adapter_says_what_to_install(name, module):
    program = PROGRAM.format(name=name, module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{module} reverb.adapters.{name} needs ")
    assert f"pip install 'reverb-replay[{name}]'" in done.stdout


def test_the_package_imports_none_of_them():
    program = (
        f"import sys, reverb; print([it for it in {[*LIBRARIES.values()]} if it in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
