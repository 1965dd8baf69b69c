# SPDX-License-Identifier: Apache-2.0
"""How many examples a property is tried with: few in `make test`, many in `make test-all`."""

import pytest


def fast_and_thorough(fast, thorough, *, timeout_s=900):
    """Parametrises a test by `max_examples`, with two numbers for hypothesis."""
    slow = [pytest.mark.slow, pytest.mark.timeout(timeout_s)]
    return pytest.mark.parametrize(
        "max_examples",
        [pytest.param(fast, id="fast"), pytest.param(thorough, id="thorough", marks=slow)],
    )
