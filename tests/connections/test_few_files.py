# SPDX-License-Identifier: Apache-2.0
"""A server that runs out of file descriptors logs it, and serves the clients that it has."""

import contextlib
import socket

import pytest

import reverb
from support.programs import Program
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
