# SPDX-License-Identifier: Apache-2.0
"""Tests of another room, to be run again with other fixtures."""

import importlib
from typing import Any


def room_tests(module: str) -> dict[str, Any]:
    """Returns the tests and fixtures of a module, for `globals().update(...)` of another one.

    The fixtures of the other one's `conftest.py` win over those of `tests/conftest.py`.
    """
    names = vars(importlib.import_module(module))
    return {name: value for name, value in names.items() if not name.startswith("__")}
