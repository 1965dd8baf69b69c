# SPDX-License-Identifier: Apache-2.0
"""Tests with PyTorch; without it they are skipped."""

import importlib.util

import pytest

import reverb

HAS_TORCH = importlib.util.find_spec("torch") is not None


class SkippedModule(pytest.Module):
    """A test file that is not even imported."""

    def collect(self):
        pytest.skip(
            "PyTorch is not installed; `make test-torch` runs this", allow_module_level=True
        )


def pytest_pycollect_makemodule(module_path, parent):
    if not HAS_TORCH:
        return SkippedModule.from_parent(parent, path=module_path)
    return None


@pytest.fixture
def table():
    """Makes a prioritized table, with other settings if asked for."""

    def make(name="t", **options):
        options = {
            "sampler": reverb.selectors.Prioritized(1.0),
            "remover": reverb.selectors.Fifo(),
            "max_size": 10_000,
            "rate_limiter": reverb.rate_limiters.MinSize(1),
        } | options
        return reverb.Table(name, **options)

    return make
