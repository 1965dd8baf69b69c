# SPDX-License-Identifier: Apache-2.0
"""A server in a process of its own, whose memory a test watches."""

import contextlib

import reverb
from support.programs import Program, resident_bytes
from support.waiting import DEADLINE_S

SOURCE = """
import reverb
from reverb import testing

server = reverb.Server([{tables}], host="127.0.0.1", {options})
print(server.port)
server.wait()
"""


def program_of(tables, options=""):
    """The program that serves these tables, which are Python source as the options are."""
    # Free memory goes back to the system at once, so that it is not counted.
    return Program(SOURCE.format(tables=tables, options=options), MIMALLOC_PURGE_DELAY="0")


class ServedApart:
    """The server, and a client of it."""

    def __init__(self, program):
        self.program = program
        self.pid = program.pid
        self.port = int(program.line())
        self.address = f"127.0.0.1:{self.port}"
        self.client = reverb.Client(self.address, connect_timeout_s=DEADLINE_S)

    def memory(self):
        """Bytes of memory that it holds."""
        return resident_bytes(self.pid)


@contextlib.contextmanager
def served_apart(tables, options=""):
    """Serves these tables for the length of a block; fails if a thread panics."""
    with program_of(tables, options) as program:
        yield ServedApart(program)
        assert "panicked" not in program.errors, program.errors
