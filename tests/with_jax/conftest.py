# SPDX-License-Identifier: Apache-2.0
"""Tests with JAX; without it they are skipped."""

import os

import pytest

import reverb
from reverb import testing
from support.skipped import skip_without

# Before JAX is imported: shardings need several devices.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"


pytest_pycollect_makemodule = skip_without("jax", "JAX", "test-jax")


@pytest.fixture
def table():
    """Makes a prioritized table, with other settings if asked for."""

    def make(name="t", **options):
        options = {"sampler": reverb.selectors.Prioritized(1.0), "max_size": 10_000} | options
        return testing.table(name, **options)

    return make
