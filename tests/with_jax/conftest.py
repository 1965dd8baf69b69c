# SPDX-License-Identifier: Apache-2.0
"""Tests with JAX; without it they are skipped."""

import importlib.util
import os

import pytest

import reverb

# Before JAX is imported: shardings need several devices.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

HAS_JAX = importlib.util.find_spec("jax") is not None


class SkippedModule(pytest.Module):
    """A test file that is not even imported."""

    def collect(self):
        pytest.skip("JAX is not installed; `make test-jax` runs this", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    if not HAS_JAX:
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
