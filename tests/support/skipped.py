# SPDX-License-Identifier: Apache-2.0
"""Test files that need a library which is not installed: they are skipped, and say so."""

import importlib.util

import pytest


def skip_without(module, name, target):
    """Makes the hook `pytest_pycollect_makemodule` of a folder's `conftest.py`.

    Args:
      module: The module that the tests import.
      name: Name of the library.
      target: The target of `make` that runs the tests.
    """
    is_installed = importlib.util.find_spec(module) is not None

    class SkippedModule(pytest.Module):
        """A test file that is not even imported."""

        def collect(self):
            pytest.skip(
                f"{name} is not installed; `make {target}` runs this", allow_module_level=True
            )

    def pytest_pycollect_makemodule(module_path, parent):
        return None if is_installed else SkippedModule.from_parent(parent, path=module_path)

    return pytest_pycollect_makemodule
