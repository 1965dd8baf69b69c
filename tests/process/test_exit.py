# SPDX-License-Identifier: Apache-2.0
"""The end of a process, and what it leaves behind while it lives."""

import contextlib
import textwrap

import pytest

from support.hosts import HOSTS, on_both_hosts
from support.programs import FreshProgram as Program
from support.programs import run_fresh as run
from support.waiting import PATIENCE

# A program that ends must do so within this time.
EXIT_S = 5.0 * PATIENCE

# The common part of the programs: a full queue, and every call that blocks.
PREPARE = """
import os
import sys
import threading
import time

import numpy as np

import reverb
from reverb import testing

host = sys.argv[1]
server = reverb.Server([reverb.Table.queue("full", 1), testing.table("empty"), testing.table()])
alive = reverb.Client(f"{host}:{server.port}")
dead = reverb.Client("127.0.0.1:1")
alive.insert([0], {"full": 1.0})
pattern = reverb.structured.pattern_from_transform([0], lambda step: [step[0][-1]])
config = reverb.structured.create_config(pattern, "full")

def trajectory_writer(client=alive):
    writer = client.trajectory_writer(1, validate_items=client is alive)
    writer.append([1])
    writer.create_item("full", 1.0, {"a": writer.history[0][:]})
    return writer

def structured_writer():
    writer = alive.structured_writer([config])
    writer.append([1])
    return writer

calls = {
    "insert": lambda: alive.insert([1], {"full": 1.0}),
    "sample": lambda: next(alive.sample("empty")),
    "sample_batch": lambda: alive.sample_batch("empty", 3),
    "batches": lambda: next(reverb.batches(alive, "empty", 3)),
    "server_info": lambda: dead.server_info(),
    "insert without a server": lambda: dead.insert([1], {"full": 1.0}),
    "flush": lambda: trajectory_writer().flush(),
    "flush without a server": lambda: trajectory_writer(dead).flush(),
    "end_episode": lambda: trajectory_writer().end_episode(),
    "structured flush": lambda: structured_writer().flush(),
    "wait": lambda: server.wait(),
}
"""

# Threads in every one of these calls, and then the end.
BLOCKED = """
kind, then = sys.argv[2:]
started = threading.Barrier(len(calls) + 1)

def block(name):
    started.wait()
    try:
        calls[name]()
    except reverb.errors.ReverbError as error:
        if kind == "daemon" and then != "stop":
            print(name, error, file=sys.stderr)  # Nothing but the end of the process ends it.

for name in calls:
    threading.Thread(target=block, args=(name,), daemon=kind == "daemon").start()
started.wait()
time.sleep(0.2)  # Most threads are in their call by now; the rest calls during the exit.
if then == "stop":
    server.stop()
print("end", flush=True)
"""


def exits_silently(*programs):
    """Checks that programs end in time after saying `end`, without an error and without a word.

    What writers had not delivered is a warning.
    """
    for program in programs:
        assert program.line() == "end"
    for program in programs:
        code = program.ended(EXIT_S)
        told = [it for it in program.errors.splitlines() if "a writer was left with" not in it]
        assert (code, told) == (0, [])


@pytest.mark.parametrize("kind", ["daemon", "joined"])
def test_threads_in_every_blocking_call_do_not_hold_up_the_exit(kind):
    with contextlib.ExitStack() as stack:
        programs = [
            stack.enter_context(Program(PREPARE + BLOCKED, host, kind, then))
            for host in HOSTS.values()
            for then in ("stop", "go on")
        ]
        exits_silently(*programs)


@pytest.mark.slow
def test_daemon_threads_in_blocking_calls_never_crash_the_exit():
    for attempt in range(30):
        then = "go on" if attempt % 2 else "stop"
        with Program(PREPARE + BLOCKED, "localhost", "daemon", then) as program:
            exits_silently(program)


def test_threads_that_get_on_go_on_after_the_main_thread():
    source = """
        import threading
        import time
        import reverb

        server = reverb.Server([reverb.Table.queue("queue", 1)])
        client = server.localhost_client()

        def act():
            for i in range(4):
                client.insert([i], {"queue": 1.0})

        def learn():
            threading.main_thread().join()
            for _ in range(4):
                time.sleep(0.1)
                print(int(next(client.sample("queue"))[0].data[0]))

        for target in (act, learn):
            threading.Thread(target=target).start()
    """
    assert run(source) == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_a_thread_that_works_long_is_waited_for():
    source = """
        import threading
        import time
        import reverb

        server = reverb.Server([reverb.Table.queue("queue", 1)])
        client = server.localhost_client()
        client.insert([0], {"queue": 1.0})

        def learn():
            threading.main_thread().join()
            time.sleep(4)  # Longer than the patience of waits that nobody can end.
            client.sample_batch("queue", 1)

        def act():
            client.insert([1], {"queue": 1.0})
            print("inserted")

        for target in (act, learn):
            threading.Thread(target=target).start()
    """
    assert run(source) == ["inserted"]


def test_executor_threads_do_not_hold_up_the_exit():
    # Made before and after the import of reverb: executors join their threads in the same phase.
    source = """
        from concurrent import futures
        executor = futures.ThreadPoolExecutor(2)
        executor.submit(int)
        import reverb
        from reverb import testing

        server = reverb.Server([testing.table()])
        client = server.localhost_client()
        others = futures.ThreadPoolExecutor(2)
        for one in (executor, others):
            one.submit(client.sample_batch, "table", 1)
        print("end", flush=True)
    """
    with Program(source) as program:
        exits_silently(program)


def test_calls_still_work_in_an_exit_handler():
    source = """
        import atexit
        import reverb
        from reverb import testing

        server = reverb.Server([testing.table()])
        client = server.localhost_client()
        writer = client.trajectory_writer(1)
        writer.append([1])
        writer.create_item("table", 1.0, {"a": writer.history[0][:]})

        @atexit.register
        def finish():
            writer.flush()
            print(client.server_info()["table"].current_size)
    """
    assert run(source) == ["1"]


LEFT_OVERS = {
    "a trajectory writer": "left = trajectory_writer()",
    "a trajectory writer without a server": "left = trajectory_writer(dead)",
    "a structured writer": "left = structured_writer()",
    "a structured writer that was dropped": "structured_writer()",
    "a batched writer": (
        "left = alive.batched_trajectory_writer(2, 1); left.append(np.arange(2)); "
        "left.create_items('full', 1.0, {'a': left.history[-1:]})"
    ),
    "a writer in a cycle": "left = [trajectory_writer()]; left.append(left); del left",
    "a generator": "left = alive.sample('full', 5); next(left)",
    "a generator that has not begun": "left = alive.sample('empty')",
    "a generator that waits in a thread": (
        "left = alive.sample('empty'); threading.Thread(target=next, args=(left,), daemon=True)"
        ".start(); time.sleep(0.1)"
    ),
    "a history": "left = trajectory_writer().history",
    "a column": "left = trajectory_writer().history[0][:]",
    "a sample": "left = alive.sample_batch('full', 1)",
    "a stopped server": "left = trajectory_writer(); server.stop()",
    "a server without a name": "reverb.Server([testing.table()])",
    "a server that a thread waits for": (
        "threading.Thread(target=server.wait, daemon=True).start(); time.sleep(0.1)"
    ),
}


# An interpreter starts for a second, so several of them are left in one program, where one does not
# end what another one waits for.
TOGETHER = [
    [name for name in LEFT_OVERS if "writer" in name],
    [name for name in LEFT_OVERS if "generator" in name],
    ["a sample", "a history", "a column"],
    ["a stopped server"],
    ["a server without a name", "a server that a thread waits for"],
]


def leaving(names):
    """A program that ends with all of these."""
    lines = [PREPARE, "kept = []"]
    for name in names:
        lines += ["left = None", LEFT_OVERS[name], "kept.append(globals().get('left'))"]
    return "\n".join([*lines, "print('end', flush=True)"])


@on_both_hosts
def test_the_interpreter_ends_whatever_is_left(host):
    assert sorted(name for names in TOGETHER for name in names) == sorted(LEFT_OVERS)
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(Program(leaving(names), host)) for names in TOGETHER]
        exits_silently(*programs)


def test_an_old_writer_that_is_left_says_what_is_lost():
    source = """
        writer = alive.writer(1)
        writer.append([1])
        writer.create_item("full", 1, 1.0)
        print("end", flush=True)
    """
    with Program(PREPARE + textwrap.dedent(source), "localhost") as program:
        assert program.line() == "end"
        assert program.ended(EXIT_S) == 0
        assert "1 unconfirmed items" in program.errors
        assert "Traceback" not in program.errors


CYCLES = """
from support.programs import open_files, threads

def cycle():
    server = reverb.Server([testing.table()])
    client = reverb.Client(f"{host}:{server.port}")
    client.insert([1], {"table": 1.0})
    writer = client.trajectory_writer(1)
    writer.append([1])
    writer.create_item("table", 1.0, {"a": writer.history[0][:]})
    writer.flush()
    assert len(list(client.sample("table", 3))) == 3
    port = server.port
    server.stop()
    # The port is free at once.
    with reverb.Server([testing.table()], port=port):
        client.insert([2], {"table": 1.0})

def clients():
    client = reverb.Client(f"{host}:{server.port}")
    writer = client.trajectory_writer(1)
    writer.append([1])
    writer.create_item("table", 1.0, {"a": writer.history[0][:]})
    old = client.writer(1)
    old.append([1])
    old.create_item("table", 1, 1.0)
    old.close()
    client.structured_writer([config]).append([1])
    next(client.sample("table", 100))

config = reverb.structured.create_config(pattern, "table")
for work in (cycle, clients):
    for _ in range(10):
        work()
    before = open_files(), threads()
    for _ in range(200):
        work()
    # Connections are closed in the background.
    deadline = time.monotonic() + 10
    while open_files() > before[0] + 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    after = open_files(), threads()
    assert after[0] <= before[0] + 4, (work, before, after)
    assert after[1] <= before[1] + 4, (work, before, after)
print("end", flush=True)
"""


@on_both_hosts
def test_no_files_threads_or_ports_are_left_behind(host):
    with Program(PREPARE + CYCLES, host) as program:
        exits_silently(program)
