# SPDX-License-Identifier: Apache-2.0
"""Closed objects answer at once: those for Gymnasium."""

import pytest

from support.ended_objects import ROWS, check, tables


@pytest.mark.parametrize("name", ROWS["gymnasium"])
def test_nothing_waits_after_the_end(start, name):
    check(ROWS["gymnasium"][name], f"localhost:{start(*tables()).port}")
