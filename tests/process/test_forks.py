# SPDX-License-Identifier: Apache-2.0
"""Forked children: what works there, what is refused, and that the parent does not notice."""

import os
import sys
import textwrap

import pytest

import reverb
from reverb import testing
from support.hosts import on_both_hosts
from support.programs import FreshProgram as Program
from support.programs import run_fresh

# A server with a full queue and a client; how to make a child and how to wait for its end.
PREPARE = """
import os
import sys
import threading
import time
import traceback
import warnings

import numpy as np

import reverb
from reverb import testing

# Newer versions of Python warn of every fork of a process with threads; here it is the point.
warnings.simplefilter("ignore", DeprecationWarning)

def in_child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid

def check(pid, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert status == 0, status
            return
        time.sleep(0.001)
    os.kill(pid, 9)
    raise AssertionError("the child hangs")

host = sys.argv[1]
server = reverb.Server([reverb.Table.queue("full", 1), testing.table()])
client = reverb.Client(f"{host}:{server.port}")
client.insert([0], {"full": 1.0})
"""


@on_both_hosts
def test_a_forked_child_uses_clients_and_refuses_the_rest(host):
    source = """
        scan = client.scan("table")
        client.insert_batch([np.arange(2)], {"table": 1.0})
        next(scan)
        client.reset("table")
        writer = client.trajectory_writer(1)
        writer.append([1])
        writer.create_item("full", 1.0, {"a": writer.history[0][:]})
        pattern = reverb.structured.pattern_from_transform([0], lambda step: [step[0][-1]])
        config = reverb.structured.create_config(pattern, "full")
        structured = client.structured_writer([config])
        structured.append([1])
        batched = client.batched_trajectory_writer(2, 1)
        sequences = client.sequence_writer("full", 1)
        sequences.append([1])
        old = client.writer(1)
        samples = client.sample("full", 10, emit_timesteps=False)
        next(samples)
        table = testing.table("other")
        batches = reverb.batches(client, "table", 1)

        def refused(call, what):
            try:
                call()
            except reverb.errors.FailedPreconditionError as error:
                assert f"This {what} was created before the process forked" in str(error), error
            else:
                raise AssertionError(f"{what} was not refused")

        def child():
            info = client.server_info()
            assert info["table"].current_size == 0
            client.insert([7], {"table": 1.0})
            assert client.sample_batch("table", 1).data == [7]
            with client.trajectory_writer(1) as mine:
                mine.append([8])
                mine.create_item("table", 1.0, {"a": mine.history[0][:]})
            refused(lambda: writer.append([2]), "TrajectoryWriter")
            refused(lambda: writer.flush(), "TrajectoryWriter")
            refused(lambda: structured.append([2]), "StructuredWriter")
            refused(lambda: batched.append(np.arange(2)), "BatchedTrajectoryWriter")
            refused(lambda: sequences.append([2]), "SequenceWriter")
            refused(lambda: sequences.flush(), "SequenceWriter")
            refused(lambda: old.append([2]), "Writer")
            refused(lambda: next(samples), "sample generator")
            refused(lambda: next(scan), "scan")
            refused(lambda: next(batches), "iterator over batches")
            batches.close()
            refused(lambda: server.wait(), "Server")
            refused(lambda: server.sync(), "Server")
            refused(lambda: table.info, "Table")
            refused(lambda: table.can_insert(1), "Table")
            refused(lambda: reverb.Server([table]), "Table")
            writer.close()
            batched.close()
            sequences.close()
            old.close()
            server.stop()  # Not the child's to stop.
            with reverb.Server([testing.table()]) as mine:
                mine.localhost_client().insert([1], {"table": 1.0})

        check(in_child(child))
        assert client.server_info()["table"].current_size == 2
        assert len(list(client.sample("table", 3))) == 3
        next(samples)  # What the parent had goes on.
        assert len(list(scan)) == 1
        writer.append([2])
        writer.flush(block_until_num_items=1)
        old.append([1])
        old.close()
        print("end", flush=True)
        os._exit(0)
    """
    with Program(PREPARE + textwrap.dedent(source), host) as program:
        assert program.line() == "end"
        assert (program.ended(), program.errors) == (0, "")


LOAD = """
stop = threading.Event()

def write():
    with client.trajectory_writer(2) as writer:
        while not stop.is_set():
            writer.append([np.zeros(100)])
            writer.create_item("table", 1.0, {"a": writer.history[0][-1:]})
            writer.flush(block_until_num_items=100)

def read():
    while not stop.is_set():
        client.sample_batch("table", 16)

def insert():
    while not stop.is_set():
        client.insert([np.zeros(100)], {"table": 1.0})

def one_child():
    mine = reverb.Client(f"{host}:{server.port}")
    mine.insert([np.zeros(100)], {"table": 1.0})
    assert len(list(mine.sample("table", 3))) == 3
    assert client.server_info()["table"].current_size > 0

threads = [threading.Thread(target=work) for work in (write, read, insert)]
for thread in threads:
    thread.start()
number = int(sys.argv[2])
for i in range(number):
    if i % 2:
        check(in_child(one_child))
        continue
    # This child ends like a program, with everything that it inherited.
    pid = os.fork()
    if not pid:
        one_child()
        sys.exit()
    check(pid)
stop.set()
for thread in threads:
    thread.join()
assert client.server_info()["table"].current_size > number
print("end", flush=True)
"""


@on_both_hosts
@pytest.mark.parametrize("number", [20, pytest.param(150, marks=pytest.mark.slow)])
def test_forks_under_load(host, number):
    with Program(PREPARE + LOAD, host, number) as program:
        assert program.line() == "end"
        assert (program.ended(), program.errors) == (0, "")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_clients_work_in_processes_of_multiprocessing(method, tmp_path):
    (tmp_path / "work.py").write_text(
        textwrap.dedent("""
            def insert(client, value):
                client.insert([value], {"table": 1.0})
                with client.trajectory_writer(1) as writer:
                    writer.append([value])
                    writer.create_item("table", 1.0, {"a": writer.history[0][:]})
        """)
    )
    source = """
        import multiprocessing
        import warnings
        import work
        import reverb
        from reverb import testing

        warnings.simplefilter("ignore", DeprecationWarning)
        if __name__ == "__main__":
            server = reverb.Server([testing.table()])
            client = server.localhost_client()
            client.insert([-1], {"table": 1.0})
            context = multiprocessing.get_context("METHOD")
            processes = [context.Process(target=work.insert, args=(client, i)) for i in range(2)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(20)
                assert process.exitcode == 0
            assert client.server_info()["table"].current_size == 5
            print("end", flush=True)
    """
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with Program(source.replace("METHOD", method), PYTHONPATH=path) as program:
        assert program.line() == "end"
        assert (program.ended(), program.errors) == (0, "")


def test_a_child_keeps_no_port_of_its_parent(tmp_path):
    """Not while the parent lives, and not when it was killed."""
    for attempt in range(5):
        try:
            return restart_beside_children(tmp_path / f"{attempt}")
        except (AssertionError, reverb.errors.InvalidArgumentError):
            # A port that is free for a moment may be given to another process.
            if attempt == 4:
                raise


def restart_beside_children(path):
    """Starts servers at the ports of servers that have children, which live on."""
    source = """
path = sys.argv[2]

def work():
    os.closerange(0, 3)  # The test waits until nobody has them.
    time.sleep(60)

def start(port, http_port):
    options = {"port": port, "http_port": http_port, "unix_path": path}
    return reverb.Server([testing.table()], host="127.0.0.1", **options)

server.stop()
server = start(0, 0)
ports = server.port, server.http_port
children = [in_child(work)]
print(*children)
server.stop()
server = start(*ports)
assert reverb.Client(f"unix:{path}").server_info()
children.append(in_child(work))
print(*children, *ports)
sys.stdin.readline()
"""
    children = []
    try:
        with Program(PREPARE + source, "127.0.0.1", path) as program:
            children.append(int(program.line()))
            _, child, port, http_port = map(int, program.line().split())
            children.append(child)
        # It was killed.
        options = {"port": port, "http_port": http_port, "unix_path": path, "host": "127.0.0.1"}
        with reverb.Server([testing.table()], **options):
            assert reverb.Client(f"127.0.0.1:{port}").server_info()
    finally:
        for child in children:
            os.kill(child, 9)


def test_forks_within_forks_work_at_any_depth():
    """The core has values for 8 generations in the first piece of a static."""
    source = textwrap.dedent(
        """
        def descend(depth):
            reverb.Client(f"{host}:{server.port}").tables()
            if depth:
                child = in_child(lambda: descend(depth - 1))
                check(child, 60)

        descend(66)
        """
    )
    with Program(PREPARE + source, "127.0.0.1") as program:
        assert program.ended() == 0, program.errors


NUM_THREADS = """
import pathlib
import time
import reverb

def started():
    tasks = pathlib.Path("/proc/self/task").iterdir()
    return [(task / "comm").read_text().strip() for task in tasks].count("reverb")

client = reverb.Client("127.0.0.1:1")
while (number := started()) < 3:  # A thread gives itself its name.
    time.sleep(0.001)
print(number)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_a_variable_sets_the_number_of_threads():
    assert run_fresh(NUM_THREADS, REVERB_THREADS="3") == ["3"]


@pytest.mark.parametrize("value", ["0", "1025", "two"])
def test_a_bad_number_of_threads_is_reported(value):
    with Program(
        'import reverb\nreverb.Server([reverb.Table.queue("t", 1)]).stop()', REVERB_THREADS=value
    ) as program:
        assert program.ended() == 0
        assert f'REVERB_THREADS must be from 1 to 1024, got "{value}"' in program.errors
