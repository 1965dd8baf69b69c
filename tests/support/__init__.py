# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of several rooms; `pythonpath` in pyproject.toml makes them importable."""
