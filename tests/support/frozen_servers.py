# SPDX-License-Identifier: Apache-2.0
"""Commands on servers in processes of their own, one of which is frozen."""

import contextlib
import signal
import time

import numpy as np

from reverb import command
from support.reverb_server import CONFIG
from support.waiting import PATIENCE

CONFIG = CONFIG.replace("max_size: 20", "max_size: 3000")
# On a machine that is idle they end within 3 s.
SOON_S = 6.0 * PATIENCE
CHANGES = {
    "pause": ["--table", "t"],
    "resume": ["--table", "t"],
    "configure": ["--table", "t", "--max-size", "300"],
    "reset": ["--table", "t", "--yes"],
}


class Commands:
    """Servers that hold 10 items each, and commands on their address.

    Attributes:
      address: The address of the server or the group.
      clients: A client of each server.
      programs: The process of each server.
    """

    def __init__(self, address, programs, clients, capsys):
        self.address, self.programs, self.clients = address, programs, clients
        self._capsys = capsys
        # The windows of a group are closed until the coordinator has opened them.
        for client in clients:
            client.insert_batch({"x": np.zeros((10, 2))}, {"t": np.ones(10)})

    def run(self, name, *options):
        """Runs a command: `code, out, err, seconds = servers.run("why")`."""
        began = time.monotonic()
        code = command.main([name, self.address, *options])
        took = time.monotonic() - began
        return code, *self._capsys.readouterr(), took

    def tables(self):
        """Items, max_size and whether it takes inserts, of the table of each server."""
        tables = [client.status().tables["t"] for client in self.clients]
        return [(it.items, it.max_items, it.inserting.paused is None) for it in tables]

    @contextlib.contextmanager
    def frozen(self, index=0):
        """Freezes a server for the block."""
        self.programs[index].signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.programs[index].signal(signal.SIGCONT)
