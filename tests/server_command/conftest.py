# SPDX-License-Identifier: Apache-2.0
"""What the command does to the log of its process is not done to that of the tests."""

import pytest

from reverb.core import native
from reverb.server_executable import server_main


@pytest.fixture(autouse=True)
def log_of_the_tests(monkeypatch):
    """Tests that call the command in their own process leave the log as it was."""
    monkeypatch.setattr(server_main.server_log, "configure", lambda log_format: None)
    yield
    native.configure_logs("warn", "text")
