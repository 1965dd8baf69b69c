# SPDX-License-Identifier: Apache-2.0
"""Runs the command in the process of the tests, whose log it leaves as it was."""

import pytest

from reverb.core import native
from reverb.server_executable import server_main
from support.reverb_server import CONFIG


@pytest.fixture(autouse=True)
def log_of_the_tests(monkeypatch):
    """Tests that call the command in their own process leave the log as it was."""
    monkeypatch.setattr(server_main.server_log, "configure", lambda log_format: None)
    yield
    native.configure_logs("warn", "text")


@pytest.fixture
def ends(monkeypatch, capfd):
    """Runs the command; returns its exit code, standard output and standard error."""

    def ends(*arguments):
        monkeypatch.setattr("sys.argv", ["reverb_server", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            server_main.app_run_main()
        return (caught.value.code, *capfd.readouterr())

    return ends


@pytest.fixture
def path(tmp_path):
    """A config file."""
    path = tmp_path / "server.textproto"
    path.write_text(CONFIG)
    return path
