# SPDX-License-Identifier: Apache-2.0
"""Tests of the adapters; without the library adapted to, they are skipped with the reason."""

import importlib.util
import pathlib

import pytest

# Imports of the tests in each directory.
NEEDS = {"tf_agents": ("tensorflow", "tf_agents"), "acme": ("dm_env",), "observers": ()}


class SkippedModule(pytest.Module):
    """A test file that is not even imported."""

    def collect(self):
        missing = ", ".join(missing_for(self.path))
        pytest.skip(
            f"not installed: {missing}; `make test-integrations` runs this", allow_module_level=True
        )


def missing_for(path: pathlib.Path) -> list[str]:
    return [name for name in NEEDS[path.parent.name] if importlib.util.find_spec(name) is None]


def pytest_pycollect_makemodule(module_path, parent):
    if missing_for(module_path):
        return SkippedModule.from_parent(parent, path=module_path)
    return None
