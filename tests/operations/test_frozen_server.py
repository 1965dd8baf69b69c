# SPDX-License-Identifier: Apache-2.0
"""A server that is frozen: commands end soon and name it; nothing is changed, also not later."""

import contextlib
import re
import signal
import time

import numpy as np
import pytest

import reverb
from reverb import command
from reverb.errors import UnavailableError
from support.programs import Program
from support.reverb_server import COMMAND
from support.waiting import PATIENCE, wait_until

CONFIG = """
tables: {
  table_name: "t"
  sampler: { uniform: true }
  remover: { fifo: true }
  max_size: 1000
  rate_limiter: { min_size: 1 }
}
"""
# On a machine that is idle they end within 3 s.
SOON_S = 6.0 * PATIENCE
READS = {"why": [], "top": ["--once"], "inspect": []}
CHANGES = {
    "pause": ["--table", "t"],
    "resume": ["--table", "t"],
    "configure": ["--table", "t", "--max-size", "5"],
    "reset": ["--table", "t", "--yes"],
}


class Frozen:
    """A server in a process of its own that holds 10 items, and commands on it."""

    def __init__(self, program, capsys):
        self.program = program
        self._capsys = capsys
        port = int(re.search(r"is ready on port (\d+)", program.line())[1])
        self.address = f"localhost:{port}"
        self.client = reverb.Client(self.address, connect_timeout_s=20)
        self.client.insert_batch({"x": np.zeros((10, 2))}, {"t": np.ones(10)})

    def run(self, name, *options):
        """Runs a command: `code, out, err, seconds = server.run("why")`."""
        began = time.monotonic()
        code = command.main([name, self.address, *options])
        took = time.monotonic() - began
        return code, *self._capsys.readouterr(), took

    @contextlib.contextmanager
    def frozen(self):
        self.program.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.program.signal(signal.SIGCONT)

    def table(self):
        table = self.client.status().tables["t"]
        return table.items, table.max_items, table.inserting.paused is None


@pytest.fixture
def server(capsys):
    with Program(COMMAND, f"--config={CONFIG}", "--port=0") as program:
        yield Frozen(program, capsys)


def test_questions_end_soon_and_name_it(server):
    for name, options in READS.items():
        assert server.run(name, *options)[0] == 0
    with server.frozen():
        for name, options in READS.items():
            code, out, err, took = server.run(name, *options)
            assert (code, out, took < SOON_S) == (1, "", True), (name, err, took)
            assert f"The server at {server.address} does not answer (no answer within 2 s)" in err
    # It goes on as if nothing had been.
    wait_until(lambda: server.run("why")[0] == 0)


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_is_changed_then_or_later(server, name):
    if name == "resume":
        assert server.run("pause", "--table", "t")[0] == 0
    before = server.table()
    with server.frozen():
        code, out, err, took = server.run(name, *CHANGES[name])
        assert (code, out, took < SOON_S) == (1, "", True), (err, took)
        # It may have answered the first question before it froze.
        assert f"The server at {server.address} does not answer" in err
    assert server.table() == before


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_connected_already_finds_the_same(server, name):
    client = reverb.Client(server.address)
    client._give_up_on_silence(1.0)
    client.status()
    change = {
        "pause": lambda: client.pause_table("t"),
        "resume": lambda: client.resume_table("t"),
        "configure": lambda: client.configure_table("t", max_size=5),
        "reset": lambda: client.reset("t"),
    }[name]
    if name == "resume":
        client.pause_table("t")
    before = server.table()
    with server.frozen():
        began = time.monotonic()
        with pytest.raises(UnavailableError, match=r"^The server at .* does not answer"):
            change()
        assert time.monotonic() - began < SOON_S
    assert server.table() == before
    change()
    assert server.table() != before


def test_the_time_to_wait_goes_with_the_timeout(server):
    with server.frozen():
        assert "within 1 s)" in server.run("why", "--timeout", "2")[2]
        assert "within 3 s)" in server.run("why", "--timeout", "15")[2]


def test_programs_wait_as_they_did(server):
    """Only commands give up: a program may wait for a server that is stopped for a while."""
    with server.frozen():
        client = reverb.Client(server.address)
        began = time.monotonic()
        with pytest.raises(reverb.errors.DeadlineExceededError):
            client.server_info(timeout=3)
        assert time.monotonic() - began >= 3
