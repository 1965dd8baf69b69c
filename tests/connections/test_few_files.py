# SPDX-License-Identifier: Apache-2.0
"""Servers and clients that run out of file descriptors: what they tell, and what still works."""

import contextlib
import json
import socket

import pytest

import reverb
from support.programs import FreshProgram, Program
from support.waiting import DEADLINE_S, wait_until
from support.wire.raw_http2 import PREFACE, frame

SERVER = """
    import resource
    import reverb
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    server = reverb.Server([reverb.Table.queue("queue", 10)], host="127.0.0.1")
    print(server.port)
    server.wait()
"""


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Windows has no such limit")
def test_connections_that_take_all_files_are_told_at_once():
    with Program(SERVER) as program, contextlib.ExitStack() as stack:
        port = int(program.line())
        client = reverb.Client(f"127.0.0.1:{port}", connect_timeout_s=DEADLINE_S)
        client.insert([1], {"queue": 1.0})
        for _ in range(100):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            # Those that were ended to make room may not take it.
            with contextlib.suppress(OSError):
                connection.sendall(PREFACE + frame(4, 0, 0))
        program.wait_for_error("nearly all of the 64 open files are used (ulimit -n)")
        client.insert([2], {"queue": 1.0})
        stack.close()
        fresh = reverb.Client(f"127.0.0.1:{port}", connect_timeout_s=DEADLINE_S)
        wait_until(lambda: fresh.server_info()["queue"].current_size == 2, DEADLINE_S)


# Calls that a program makes when something is wrong, and the classes of their outcomes.
DIAGNOSES = {
    "client.checkpoint_status()": "CheckpointStatus",
    "client.status(with_streams=True)": "ServerStatus",
    "client.diagnose('queue')": "Diagnosis",
    "client.server_info()": "dict",
    "client.capabilities()": "frozenset",
    "client.shard_info()": "InvalidArgumentError",
    "client.sample_batch('queue', 1, timeout_ms=10)": "DeadlineExceededError",
    "client.sample_batch('other', 1)": "TableNotFoundError",
    "client.insert([1], {'other': 1.0})": "TableNotFoundError",
    "client.configure_table('queue', max_size=0)": "InvalidArgumentError",
    "next(client.batches('queue', 1, timeout_ms=10))": "DeadlineExceededError",
    "reverb.Client('localhost:1', connect_timeout_s=0.1).tables()": "UnavailableError",
    "reverb.checkpointers.read('/nowhere')": "FailedPreconditionError",
    "server.status()": "ServerStatus",
    "server.configure_tables({'other': reverb.TableChange(max_size=3)})": "TableNotFoundError",
}
WITHOUT_FILES = """
    import json, resource, sys
    import reverb
    server = reverb.Server([reverb.Table.queue("mine", 10)])
    clients = [reverb.Client(it, connect_timeout_s=60) for it in sys.argv[2:]]
    for client in clients:
        client.tables()
    names = set(sys.modules)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    for client in clients:
        for call in json.loads(sys.argv[1]):
            try:
                outcome = eval(call)
                str(outcome), repr(outcome)
            except Exception as error:
                outcome = error
            print(json.dumps([call, type(outcome).__name__, str(outcome)[:300]]), flush=True)
    print(json.dumps(sorted(set(sys.modules) - names)), flush=True)
"""


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Windows has no such limit")
def test_errors_and_diagnosis_need_no_files(start):
    server = start(reverb.Table.queue("queue", 10), host="127.0.0.1")
    address = f"127.0.0.1:{server.port}"
    with FreshProgram(WITHOUT_FILES, json.dumps(list(DIAGNOSES)), address) as program:
        for call, kind in DIAGNOSES.items():
            told, outcome, text = json.loads(program.line())
            assert (told, outcome) == (call, kind), text
        assert json.loads(program.line()) == []  # No module was loaded.
