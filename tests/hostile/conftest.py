# SPDX-License-Identifier: Apache-2.0
"""A server in a process of its own, and clients that do to it what none of ours would.

After every test the server must still serve other clients.
"""

import contextlib
import time

import pytest

from reverb.errors import DataLossError, DeadlineExceededError
from support.served_apart import ServedApart, program_of
from support.wire.wire_client import WireClient

# `items` takes whatever comes, `prioritized` wants good priorities, `queue` lets few items in,
# `empty` is never written to, and `good` is mostly used by the checks here.
TABLES = """
    testing.table("items", sampler=reverb.selectors.Uniform(), max_size=100_000),
    testing.table("prioritized", sampler=reverb.selectors.Prioritized(0.8)),
    testing.table("heap", sampler=reverb.selectors.MaxHeap()),
    reverb.Table.queue("queue", 3),
    testing.table("empty", sampler=reverb.selectors.Uniform()),
    testing.table("good", sampler=reverb.selectors.Lifo(), max_size=10),
"""


class Server(ServedApart):
    """The server under attack."""

    def __init__(self):
        super().__init__(program_of(TABLES))

    def reset(self):
        """Empties every table, also of what waits for the queue: its writers may be dead."""
        for name in self.client.server_info():
            self.client.reset(name)
        with contextlib.suppress(DeadlineExceededError):
            while True:
                with contextlib.suppress(DataLossError):
                    self.client.sample_batch("queue", 1, timeout_ms=20)

    def check(self):
        """Fails unless the server serves as ever."""
        assert "panicked" not in self.program.errors, self.program.errors
        assert set(self.client.server_info(timeout=20)) >= {"items", "good"}
        value = time.monotonic()
        self.client.insert([value], {"good": 1.0})
        assert self.client.sample_batch("good", 1, timeout_ms=20_000).data == [value]

    def stop(self):
        """Ends it."""
        with self.program:
            pass


@pytest.fixture(scope="session")
def _servers():
    running = []
    yield running
    for server in running:
        server.stop()


@pytest.fixture
def server(_servers):
    """The server; it starts anew after a test that broke it."""
    if not _servers:
        _servers.append(Server())
    server = _servers[0]
    try:
        yield server
        server.check()
        server.reset()
    except BaseException:
        _servers.remove(server)
        server.stop()
        raise


@pytest.fixture
def wire(server):
    """A client that sends any bytes."""
    with WireClient(f"127.0.0.1:{server.port}") as wire:
        yield wire
