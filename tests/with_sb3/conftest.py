# SPDX-License-Identifier: Apache-2.0
"""Tests with Stable-Baselines3; without it they are skipped."""

from support.skipped import skip_without

pytest_pycollect_makemodule = skip_without("stable_baselines3", "Stable-Baselines3", "test-sb3")
