# SPDX-License-Identifier: Apache-2.0
"""Tests of the recorders for Gymnasium; without Gymnasium they are skipped, and say so."""

import importlib.util

import pytest

from reverb import testing

HAS_GYMNASIUM = importlib.util.find_spec("gymnasium") is not None


class SkippedModule(pytest.Module):
    """A test file that is not even imported."""

    def collect(self):
        pytest.skip(
            "Gymnasium is not installed; `make test-gymnasium` runs this", allow_module_level=True
        )


def pytest_pycollect_makemodule(module_path, parent):
    if not HAS_GYMNASIUM:
        return SkippedModule.from_parent(parent, path=module_path)
    return None


@pytest.fixture
def client():
    """A client of a server with a table that evicts nothing: `replay`."""
    with testing.server([testing.table("replay", max_size=10**6)]) as made:
        yield made


@pytest.fixture
def signed():
    """Starts a server with a signed table: `with signed(signature) as client`."""

    def signed(signature):
        return testing.server([testing.table("replay", max_size=10**6, signature=signature)])

    return signed
