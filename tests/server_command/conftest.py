# SPDX-License-Identifier: Apache-2.0
"""Keeps the command from changing the log of the process of the tests."""

import pytest

from reverb.core import native
from reverb.server_executable import server_main


@pytest.fixture(autouse=True)
def log_of_the_tests(monkeypatch):
    """Tests that call the command in their own process leave the log as it was."""
    monkeypatch.setattr(server_main.server_log, "configure", lambda log_format: None)
    yield
    native.configure_logs("warn", "text")
