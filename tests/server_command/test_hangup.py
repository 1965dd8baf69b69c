# SPDX-License-Identifier: Apache-2.0
"""The end of `reverb_server` when its terminal is closed."""

import shutil
import signal
import subprocess
import sys

import pytest

import reverb
from support import reverb_server
from support.log_lines import messages
from support.programs import Program
from support.reverb_server import COMMAND, CONFIG, TERMINAL, client_of
from support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no SIGHUP")

# A stop that takes as long as the test wants.
SLOW_STOP = """
import sys
from reverb.server import Server

def stop(self, drain_s, stop=Server.stop):
    print("stopping", flush=True)
    sys.stdin.readline()
    stop(self)
    print("saved", flush=True)

Server.stop = stop
"""

BEGIN, END = "INFO server: stopping after SIGHUP", "INFO server: stopped"


def running(root, source=COMMAND):
    """A server in a process of its own that saves when it stops, and a client of it."""
    options = [f"--checkpoint-dir={root}", "--checkpoint-on-stop"]
    return reverb_server.running(*options, source=source)


def num_saved(root):
    return reverb.checkpointers.read(root).statistics()["t"].num_items


def test_a_hangup_saves_and_stops_like_sigterm(root):
    with running(root) as (program, client):
        client.insert([7], {"t": 1.0})
        program.signal(signal.SIGHUP)
        assert program.ended() == 0
        *_, begin, saved, end = messages(program.errors)
        assert (begin, end) == (BEGIN, END)
        assert saved.startswith(f"INFO server: checkpoint {root}")
    assert num_saved(root) == 1


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
def test_another_hangup_does_not_end_the_save(root, first):
    """The system and the shell send one each when a terminal is closed."""
    with running(root, SLOW_STOP + COMMAND) as (program, client):
        client.insert([7], {"t": 1.0})
        program.signal(first)
        assert program.line() == "stopping"
        program.signal(signal.SIGHUP)
        program.signal(signal.SIGHUP)
        program.tell()
        assert program.line() == "saved"
        assert program.ended() == 0
    assert num_saved(root) == 1


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_other_signals_after_a_hangup_end_it_at_once(root, second):
    with running(root, SLOW_STOP + COMMAND) as (program, _):
        program.signal(signal.SIGHUP)
        assert program.line() == "stopping"
        program.signal(second)
        assert program.ended() == -second
    assert not root.exists()


@pytest.mark.parametrize("has_file", [False, True])
def test_a_server_under_nohup_outlives_the_terminal(tmp_path, has_file):
    if shutil.which("nohup") is None:
        pytest.skip("needs nohup")
    path = tmp_path / "server.textproto"
    path.write_text(CONFIG)
    config = f"--config-file={path}" if has_file else f"--config={CONFIG}"
    command = ["nohup", sys.executable, "-u", "-c", COMMAND, config, "--host=127.0.0.1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            client = client_of(process.stdout.readline())
            path.write_text(CONFIG.replace("max_size: 20", "max_size: 30"))
            process.send_signal(signal.SIGHUP)
            client.insert([7], {"t": 1.0})
            wait_until(lambda: client.server_info()["t"].max_size == (30 if has_file else 20))
            assert client.server_info()["t"].current_size == 1
            process.terminate()
            # Nor does one that comes while it stops.
            process.send_signal(signal.SIGHUP)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def test_closing_the_terminal_saves(root):
    """Nothing can be written any more, and every line of the end tries to."""
    options = [f"--config={CONFIG}", f"--checkpoint-dir={root}", "--checkpoint-on-stop"]
    with Program(TERMINAL, COMMAND, *options) as program:
        client = client_of(program.line())
        client.insert([7], {"t": 1.0})
        program.tell()
        assert int(program.line()) > 0
        assert program.line() == "0"
    assert num_saved(root) == 1


def test_a_hangup_while_it_starts_ends_it():
    source = """
import time
from reverb.server_executable import server_main
def start(*_, **__):
    print("starting", flush=True)
    time.sleep(1000)
server_main.Server = start
"""
    with Program(source + COMMAND, f"--config={CONFIG}") as program:
        assert program.line() == "starting"
        program.signal(signal.SIGHUP)
        assert program.ended() == -signal.SIGHUP


def test_a_program_that_waits_for_its_server_keeps_its_signals():
    source = """
    import signal
    import reverb
    from reverb import testing

    before = [signal.getsignal(number) for number in signal.valid_signals()]
    server = reverb.Server([testing.table()])
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before
    print("waiting")
    server.wait()
    """
    with Program(source) as program:
        assert program.line() == "waiting"
        program.signal(signal.SIGHUP)
        assert program.ended() == -signal.SIGHUP
