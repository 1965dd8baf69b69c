# SPDX-License-Identifier: Apache-2.0
"""Tests with Stable-Baselines3; without it they are skipped."""

import importlib.util

import pytest

HAS_SB3 = importlib.util.find_spec("stable_baselines3") is not None


class SkippedModule(pytest.Module):
    """A test file that is not even imported."""

    def collect(self):
        pytest.skip(
            "Stable-Baselines3 is not installed; `make test-sb3` runs this", allow_module_level=True
        )


def pytest_pycollect_makemodule(module_path, parent):
    if not HAS_SB3:
        return SkippedModule.from_parent(parent, path=module_path)
    return None
