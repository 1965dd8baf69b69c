# SPDX-License-Identifier: Apache-2.0
"""Closed objects answer at once: those for Stable-Baselines3."""

import pytest

from support.ended_objects import ROWS, check, tables


@pytest.mark.parametrize("name", ROWS["sb3"])
def test_nothing_waits_after_the_end(start, name):
    check(ROWS["sb3"][name], f"localhost:{start(*tables()).port}")
