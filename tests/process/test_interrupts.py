# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, and other signals, in every call that blocks."""

import pathlib
import signal
import socket
import time

import pytest

from support.hosts import IN_PROCESS, REMOTE
from support.programs import Program
from support.waiting import DEADLINE_S, PATIENCE

# From the signal to the `except` clause; 50 ms and a moment unless the machine is busy.
LIMIT_S = 5.0 * PATIENCE

# A table that takes one item and no more, one that has nothing to sample, an address at which
# nothing listens and one at which nothing answers. A call comes as `prepare | call`.
PROGRAM = """
import os
import pathlib
import shutil
import signal
import sys
import tempfile

import numpy as np

import reverb
from reverb import testing
from reverb._writers import leaving

host, nobody, silence = sys.argv[1:]
server = reverb.Server([reverb.Table.queue("full", 1), testing.table("empty")])
alive = reverb.Client(f"{host}:{server.port}")
dead = reverb.Client(nobody)
silent = reverb.Client(silence)
alive.insert([0], {"full": 1.0})
pattern = reverb.structured.pattern_from_transform([0], lambda step: [step[0][-1]])
config = reverb.structured.create_config(pattern, "full")

def trajectory_writer(client):
    writer = client.trajectory_writer(1, validate_items=client is alive)
    writer.append([1])
    writer.create_item("full", 1.0, {"a": writer.history[0][:]})
    return writer

def batched_writer():
    writer = alive.batched_trajectory_writer(2, 1)
    writer.append(np.arange(2))
    writer.create_items("full", 1.0, {"a": writer.history[-1:]})
    return writer

def sequence_writer():
    writer = alive.sequence_writer("full", 1)
    writer.append([1])
    return writer

def sequence_writer_that_flushes_for_a_minute():
    leaving.FLUSH_TIMEOUT_MS = 60_000
    return sequence_writer()

def structured_writer(client):
    writer = client.structured_writer([config])
    writer.append([1])
    return writer

def legacy_writer():
    writer = alive.writer(1, chunk_length=1, max_in_flight_items=1)
    writer.append([1])
    writer.create_item("full", 1, 1.0)
    return writer

def legacy_writer_with_an_open_chunk():
    writer = alive.writer(2, chunk_length=2, max_in_flight_items=1)
    writer.append([1])
    writer.create_item("full", 1, 1.0)
    writer.create_item("full", 1, 1.0)
    return writer

def client_of_a_server_whose_disk_fails():
    directory = pathlib.Path(tempfile.mkdtemp()) / "store"
    server = reverb.Server([testing.table("t")], store=reverb.Store(directory))
    client = reverb.Client(f"{host}:{server.port}")
    kept.append(server)
    # The payload of the item needs a new file.
    shutil.move(directory, directory.with_name("away"))
    client.insert_batch(np.zeros((1, 5000)), {"t": 1.0})
    return client

def flush_until_it_blocks(writer):
    writer.flush()
    writer.flush()

kept = []
for line in sys.stdin:
    prepare, _, call = line.rpartition("|")
    made = eval(prepare) if prepare else None
    kept.append(made)
    call = compile(call.strip(), "call", "eval")
    try:
        print("calling", flush=True)
        eval(call)
        print("returned", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    try:
        print("pausing", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print("heard", flush=True)
"""

CALLS = {
    "insert": "alive.insert([1], {'full': 1.0})",
    "insert_batch": "alive.insert_batch(np.arange(2), {'full': 1.0})",
    "insert, no server": "dead.insert([1], {'full': 1.0})",
    "insert, silent server": "silent.insert([1], {'full': 1.0})",
    "sample": "next(alive.sample('empty'))",
    "sample, no server": "next(dead.sample('empty'))",
    "sample, silent server": "next(silent.sample('empty'))",
    "sample_batch": "alive.sample_batch('empty', 4)",
    "sample_batch, no server": "dead.sample_batch('empty', 4)",
    "batches": "reverb.batches(alive, 'empty', 4) | next(made)",
    "batches, no server": "reverb.batches(dead, 'empty', 4) | next(made)",
    "batches of a thread": "reverb.batches(alive, 'empty', 4, transform=list) | next(made)",
    "scan, no server": "next(dead.scan('full'))",
    "scan, silent server": "next(silent.scan('full'))",
    "server_info, no server": "dead.server_info()",
    "server_info, silent server": "silent.server_info()",
    "server_info, with a timeout": "dead.server_info(timeout=60)",
    "mutate_priorities, no server": "dead.mutate_priorities('full', {1: 1.0})",
    "reset, no server": "dead.reset('full')",
    "trajectory_writer, no server": "dead.trajectory_writer(1)",
    "trajectory_writer, silent server": "silent.trajectory_writer(1)",
    "batched_trajectory_writer, no server": "dead.batched_trajectory_writer(2, 1)",
    "sequence_writer, no server": "dead.sequence_writer('full', 1)",
    "writer, no server": "dead.writer(1)",
    "trajectory writer flush": "trajectory_writer(alive) | made.flush()",
    "trajectory writer flush, no server": "trajectory_writer(dead) | made.flush()",
    "trajectory writer flush, silent server": "trajectory_writer(silent) | made.flush()",
    "trajectory writer end_episode": "trajectory_writer(alive) | made.end_episode()",
    "trajectory writer end_episode with a timeout": (
        "trajectory_writer(alive) | made.end_episode(timeout_ms=60_000)"
    ),
    "trajectory writer exit": "trajectory_writer(alive) | made.__exit__(None, None, None)",
    "batched writer flush": "batched_writer() | made.flush()",
    "sequence writer flush": "sequence_writer() | made.flush()",
    "sequence writer exit after an exception": (
        "sequence_writer_that_flushes_for_a_minute() | made.__exit__(KeyError, None, None)"
    ),
    "structured writer flush": "structured_writer(alive) | made.flush()",
    "structured writer end_episode": "structured_writer(alive) | made.end_episode()",
    "structured writer append, no server": ("dead.structured_writer([config]) | made.append([1])"),
    "legacy writer append": "legacy_writer_with_an_open_chunk() | made.append([2])",
    "legacy writer create_item": "legacy_writer() | made.create_item('full', 1, 1.0)",
    "legacy writer flush": "legacy_writer() | flush_until_it_blocks(made)",
    "legacy writer close": "legacy_writer() | made.close()",
    "sync, a disk that fails": "client_of_a_server_whose_disk_fails() | made.sync()",
    "server wait": "server.wait()",
}
CASES = {f"in process, {name}": (IN_PROCESS, call) for name, call in CALLS.items()} | {
    f"remote, {name}": (REMOTE, call) for name, call in CALLS.items() if "server" not in name
}


@pytest.fixture(scope="module")
def addresses():
    """An address where nobody listens, and one where nobody answers."""
    with socket.socket() as bound, socket.create_server(("127.0.0.1", 0)) as listening:
        bound.bind(("127.0.0.1", 0))
        yield [f"127.0.0.1:{it.getsockname()[1]}" for it in (bound, listening)]


@pytest.fixture(scope="module")
def programs(addresses):
    """The programs of this module, one for each way to reach a server."""
    running = {}

    def program(host):
        if host not in running:
            running[host] = Program(PROGRAM, host, *addresses)
        return running[host]

    def drop(host):
        with running.pop(host):
            pass

    program.drop = drop
    yield program
    for host in list(running):
        drop(host)


def wait_until_blocked(program):
    """Waits until the main thread has slept at every one of a few looks in a row."""
    stat = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/stat")
    deadline = time.monotonic() + DEADLINE_S
    sleeping = 0
    while sleeping < 8:
        state = stat.read_text().rpartition(")")[2].split()[0]
        assert state != "Z", f"the program ended: {program.errors}"
        assert time.monotonic() < deadline, "the call does not block"
        sleeping = sleeping + 1 if state == "S" else 0
        time.sleep(0.005)


def interrupt(program):
    """Interrupts the program where it sleeps; returns what it says then and how long that took."""
    wait_until_blocked(program)
    began = time.monotonic()
    program.signal(signal.SIGINT)
    return program.line(), time.monotonic() - began


def check(program, call):
    program.tell(call)
    assert program.line() == "calling"
    answer, seconds = interrupt(program)
    assert answer == "interrupted"
    assert seconds < LIMIT_S
    assert program.line() == "pausing"
    answer, _ = interrupt(program)
    assert answer == "heard"


@pytest.mark.parametrize(("host", "call"), CASES.values(), ids=CASES)
def test_ctrl_c_ends_the_call_and_is_heard_afterwards(programs, host, call):
    try:
        check(programs(host), call)
    except BaseException:
        programs.drop(host)  # Its state is not known any more.
        raise


@pytest.mark.parametrize("call", ["server.wait()", "client.sample_batch('table', 1)"])
def test_sigterm_ends_the_process_as_usual(call):
    source = f"""
        import reverb
        from reverb import testing

        server = reverb.Server([testing.table()])
        client = server.localhost_client()
        print("calling")
        {call}
    """
    with Program(source) as program:
        assert program.line() == "calling"
        wait_until_blocked(program)
        program.signal(signal.SIGTERM)
        assert program.ended(timeout_s=LIMIT_S) == -signal.SIGTERM


def test_a_handler_of_any_signal_runs_while_a_call_blocks():
    source = """
        import signal
        import reverb
        from reverb import testing

        class Alarm(Exception):
            pass

        def on_alarm(number, frame):
            print("alarm")
            if len(calls) > 1:
                raise Alarm
            calls.append(number)
            signal.setitimer(signal.ITIMER_REAL, 0.1)

        calls = []
        signal.signal(signal.SIGALRM, on_alarm)
        server = reverb.Server([testing.table()])
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            next(server.localhost_client().sample("table"))
        except Alarm:
            print("raised")
    """
    with Program(source) as program:
        assert [program.line() for _ in range(4)] == ["alarm", "alarm", "alarm", "raised"]
        assert program.ended() == 0
