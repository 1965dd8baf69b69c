# SPDX-License-Identifier: Apache-2.0
"""Closed objects answer at once: those for PyTorch."""

import pytest

from support.ended_objects import ROWS, check, tables


@pytest.mark.parametrize("name", ROWS["torch"])
def test_nothing_waits_after_the_end(start, name):
    check(ROWS["torch"][name], f"localhost:{start(*tables()).port}")
