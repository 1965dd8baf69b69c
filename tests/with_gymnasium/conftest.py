# SPDX-License-Identifier: Apache-2.0
"""Tests of the recorders for Gymnasium; without Gymnasium they are skipped, and say so."""

import pytest

from reverb import testing
from support.skipped import skip_without

pytest_pycollect_makemodule = skip_without("gymnasium", "Gymnasium", "test-gymnasium")


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
