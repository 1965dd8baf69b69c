# SPDX-License-Identifier: Apache-2.0
"""Tests with PyTorch; without it they are skipped."""

import pytest

import reverb
from reverb import testing
from support.skipped import skip_without

pytest_pycollect_makemodule = skip_without("torch", "PyTorch", "test-torch")


@pytest.fixture
def table():
    """Makes a prioritized table, with other settings if asked for."""

    def make(name="t", **options):
        options = {"sampler": reverb.selectors.Prioritized(1.0), "max_size": 10_000} | options
        return testing.table(name, **options)

    return make
