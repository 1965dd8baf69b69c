# SPDX-License-Identifier: Apache-2.0
"""Callers that are alone on their connection and read their own answers: forks, signals, ends."""

import os
import pathlib
import signal
import threading

import pytest

import reverb
from support.programs import Program
from support.served_apart import served_apart
from support.waiting import DEADLINE_S, wait_until

TABLES = 'testing.table("t"), testing.table("empty")'
# More calls than a caller makes before it reads its own answers.
MANY = 20
SETUP = f"""
import os
import signal
import sys

import reverb

def drive(client):
    for _ in range({MANY}):
        client.server_info()

client = reverb.Client(sys.argv[1])
drive(client)
"""
FORK = """
child = os.fork()
if not child:
    own = reverb.Client(sys.argv[1])
    drive(own)
    own.insert([1.0], {"t": 1.0})
    print("child", flush=True)
    os._exit(0)
drive(client)
_, status = os.waitpid(child, 0)
drive(client)
print("parent", os.waitstatus_to_exitcode(status))
"""
SIGNAL = """
class Alarm(Exception):
    pass

def ring(*_):
    raise Alarm

signal.signal(signal.SIGALRM, ring)
for _ in range(5):
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        next(iter(client.sample("empty", 1)))
    except Alarm:
        print("interrupted")
    drive(client)
"""


@pytest.fixture(scope="module")
def server():
    with served_apart(TABLES) as server:
        yield server


def drive(client):
    for _ in range(MANY):
        client.server_info()


def test_a_fork_between_two_calls_harms_neither_process(server):
    with Program(SETUP + FORK, server.address) as program:
        assert [program.line(), program.line()] == ["child", "parent 0"]


def test_a_signal_ends_a_wait_and_the_connection_works_on(server):
    with Program(SETUP + SIGNAL, server.address) as program:
        assert [program.line() for _ in range(5)] == ["interrupted"] * 5


def test_an_exception_ends_a_call_while_another_thread_waits(server):
    client = reverb.Client(server.address)
    drive(client)
    sampled = []
    thread = threading.Thread(target=lambda: sampled.extend(client.sample("empty", 1)))
    thread.start()
    for _ in range(MANY):
        with pytest.raises(reverb.errors.ReverbError, match="timed out"):
            client.sample_batch("empty", 1, timeout_ms=1)
    client.insert([1.0], {"empty": 1.0})
    thread.join(DEADLINE_S)
    assert len(sampled) == 1
    client.reset("empty")


def test_a_call_outlives_a_server_that_freezes_for_a_while():
    with served_apart(TABLES) as server:
        client = reverb.Client(server.address)
        drive(client)
        os.kill(server.pid, signal.SIGSTOP)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(client.server_info()))
        thread.start()
        # Longer than the caller reads its own answer.
        thread.join(0.2)
        os.kill(server.pid, signal.SIGCONT)
        thread.join(DEADLINE_S)
        assert len(answers) == 1
        drive(client)


def test_threads_that_end_leave_no_files(server):
    client = reverb.Client(server.address)
    drive(client)
    files = pathlib.Path("/proc/self/fd")
    before = len(list(files.iterdir()))
    for _ in range(10):
        thread = threading.Thread(target=drive, args=[client])
        thread.start()
        thread.join()
    wait_until(lambda: len(list(files.iterdir())) <= before)
