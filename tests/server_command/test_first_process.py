# SPDX-License-Identifier: Apache-2.0
"""Servers as the first process of a container, where the kernel spares it most signals."""

import contextlib
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from support.log_lines import messages
from support.reverb_server import COMMAND, CONFIG
from support.waiting import DEADLINE_S, wait_until

UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]

SLOW_START = """
import time
from reverb.server_executable import server_main

def start(*values, **named):
    print("starting", flush=True)
    while True:
        time.sleep(0.01)

server_main.Server = start
"""
SLOW_STOP = """
import time
from reverb.server import Server

def stop(self, drain_s):
    print("stopping", flush=True)
    while True:
        time.sleep(0.01)

Server.stop = stop
"""


@pytest.fixture(scope="module", autouse=True)
def namespaces():
    if shutil.which("unshare") is None:
        pytest.skip("unshare, which makes a first process, is missing")
    tried = subprocess.run([*UNSHARE, "true"], stderr=subprocess.PIPE, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"this user may not make namespaces: {tried.stderr.strip()}")


# A signal that comes before there is a handler is lost.
PROGRAM = """
import signal
import threading
import time
import reverb

def tell():
    while signal.SIG_DFL in map(signal.getsignal, (signal.SIGTERM, signal.SIGHUP)):
        time.sleep(0.01)
    print("waits", flush=True)

server = reverb.Server([reverb.Table.queue("queue", 10)])
threading.Thread(target=tell).start()
server.wait()
"""


class FirstProcess:
    """A server that is the first process of its namespace."""

    def __init__(self, source):
        command = [*UNSHARE, sys.executable, "-uc", source, f"--config={CONFIG}"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)

    def line(self):
        """The next line that it prints."""
        return self._process.stdout.readline()

    def signal(self, number):
        """Sends a signal to the server, as the kubelet does."""
        children = pathlib.Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        wait_until(lambda: children.read_text().split())
        (child,) = children.read_text().split()
        subprocess.run(["kill", f"-{int(number)}", child], check=True)

    def ended(self):
        """Its exit code, and what it has logged."""
        code = self._process.wait(DEADLINE_S)
        return code, messages(self._process.stderr.read())

    def close(self):
        """Ends it."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def started():
    with contextlib.ExitStack() as stack:

        def started(source=""):
            return stack.enter_context(contextlib.closing(FirstProcess(source + COMMAND)))

        yield started


def test_a_signal_stops_it_in_good_order(started):
    server = started()
    assert " is ready on port " in server.line()
    server.signal(signal.SIGTERM)
    code, told = server.ended()
    assert code == 0
    assert told[-1] == "INFO server: stopped"


def test_a_signal_while_it_starts_ends_it(started):
    server = started(SLOW_START)
    assert server.line() == "starting\n"
    server.signal(signal.SIGTERM)
    code, _ = server.ended()
    assert code == 128 + signal.SIGTERM


def test_a_second_signal_ends_it_at_once(started):
    server = started(SLOW_STOP)
    assert " is ready on port " in server.line()
    server.signal(signal.SIGTERM)
    assert server.line() == "stopping\n"
    server.signal(signal.SIGTERM)
    code, told = server.ended()
    assert code == 128 + signal.SIGTERM
    assert told[-1] == "INFO server: stopping after SIGTERM"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_program_that_waits(number):
    with contextlib.closing(FirstProcess(PROGRAM)) as program:
        assert program.line() == "waits\n"
        program.signal(number)
        assert program.ended() == (128 + number, [])


def test_other_processes_keep_the_default_of_signals(start):
    server = start()
    server.stop()
    server.wait()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
