# SPDX-License-Identifier: Apache-2.0
"""Gives every test a home directory of its own: `pytest -p own_home`.

Agents of Acme write checkpoints to ~/acme under a name that is the same for the whole process, and
restore what they find there, also if another test with another agent has written it.
"""

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
