# SPDX-License-Identifier: Apache-2.0
"""Two `reverb_server` processes that restart in turn, and clients in processes of their own.

At the end each value is accounted for: it is in a table of a server, or somebody has sampled it.
"""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import random
import signal
import socket
from collections.abc import Iterator

import reverb
from support.log_lines import from_text, messages
from support.programs import Program
from support.reverb_server import COMMAND
from support.waiting import DEADLINE_S, wait_until

QUEUE_SIZE = 500

# `replay` keeps all that a test inserts; `queue` hands each item out once.
CONFIG = f"""
tables: {{
  table_name: "replay"
  sampler: {{ prioritized: {{ priority_exponent: 1.0 }} }}
  remover: {{ fifo: true }}
  max_size: 10000000
  rate_limiter: {{ min_size_to_sample: 1 samples_per_insert: 1 min_diff: -1e300 max_diff: 1e300 }}
}}
tables: {{
  table_name: "queue"
  sampler: {{ fifo: true }}
  remover: {{ fifo: true }}
  max_size: {QUEUE_SIZE}
  max_times_sampled: 1
  rate_limiter: {{ min_size_to_sample: 1 samples_per_insert: 1 min_diff: 0 max_diff: {QUEUE_SIZE} }}
}}
"""

# Clients: a thread for each role on the command line, until a line says so. Then each ends in good
# order, and one line tells what is confirmed, what was sampled, and which errors there were.
_CLIENTS = """
import json
import sys
import time

from support.load_clients import LoadClients

address, number, *roles = sys.argv[1:]
load = LoadClients([address], roles, int(number))
while not all(load.rounds.values()) and not load.errors:
    time.sleep(0.001)
print("at work", flush=True)
for line in sys.stdin:
    if line.strip() == "stop":
        break
    print(json.dumps(load.rounds), flush=True)
load.stop()
told = {"confirmed": load.confirmed, "sampled": load.sampled, "errors": load.errors}
print(json.dumps(told), flush=True)
"""

_BOTH = "replay,queue"
WRITERS = (
    f"insert:{_BOTH}",
    f"insert_batch:{_BOTH}",
    f"trajectory_writer:{_BOTH}",
    "late_flush:replay",
    "late_flush:queue",
    "new_writers:queue",
    f"batched_writer:{_BOTH}",
    f"sequence_writer:{_BOTH}",
    f"legacy_writer:{_BOTH}",
)
SAMPLERS = (
    "sample:queue",
    "sample_one:queue",
    "sample_batch:queue",
    "learner:replay",
    "one_by_one:replay",
)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on.

    The system gives none of them to a connection or a server without a port, so they stay free
    while a server restarts.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            ports = [*{*ports, port}]
    return ports


class RestartedServer:
    """A `reverb_server` on a port of its own that has what it had when it was stopped."""

    def __init__(
        self, directory: pathlib.Path, port: int, config: str = CONFIG, *, has_store: bool = False
    ) -> None:
        self.address = f"127.0.0.1:{port}"
        checkpoints = (f"--checkpoint-dir={directory}", "--checkpoint-on-stop")
        self._options = [
            f"--port={port}",
            "--host=127.0.0.1",
            f"--config={config}",
            *((f"--store={directory}",) if has_store else checkpoints),
            f"--drain-timeout={DEADLINE_S}",
        ]
        self.start()

    def start(self) -> None:
        """Starts it; returns when it is ready."""
        self._program = Program(COMMAND, *self._options)
        assert "is ready on port" in self._program.line()

    def stop(self) -> None:
        """Stops it by SIGTERM; it drains, and saves or makes its last commit."""
        self._program.signal(signal.SIGTERM)
        code = self._program.ended()
        errors = self._program.errors
        self._program.__exit__()
        assert code == 0, errors
        told = [str(line) for line in from_text(errors) if line.level != "INFO"]
        assert told == [], "a stop in good order has nothing to warn of"
        assert messages(errors)[-1] == "INFO server: stopped"

    def restart(self) -> None:
        """Stops it and starts it again."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Ends it on the spot."""
        self._program.__exit__()

    def client(self) -> reverb.Client:
        """A client of it alone."""
        return reverb.Client(self.address)

    def values(self, table: str) -> list[int]:
        """The values of a table's items."""
        return [int(sample.data[0][0]) for sample in self.client().scan(table)]


class Outcome:
    """The results of the clients.

    Attributes:
      confirmed: The values of each table that are confirmed.
      sampled: Those that were sampled.
      errors: Errors, and the whole output of the processes.
    """

    def __init__(self) -> None:
        self.confirmed: dict[str, list[int]] = collections.defaultdict(list)
        self.sampled: dict[str, list[int]] = collections.defaultdict(list)
        self.errors: list[str] = []


class Load:
    """Processes with clients of an address, each a thread for each of its roles."""

    def __init__(self, address: str, *roles: tuple[str, ...]) -> None:
        self._programs = [
            Program(_CLIENTS, address, number, *each) for number, each in enumerate(roles)
        ]
        try:
            for program in self._programs:
                assert program.line() == "at work"
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Ends the processes."""
        for program in self._programs:
            program.__exit__()

    def rounds(self) -> dict[str, int]:
        """How often each role has gone round."""
        rounds: collections.Counter[str] = collections.Counter()
        for program in self._programs:
            program.tell("rounds")
            rounds.update(json.loads(program.line()))
        return dict(rounds)

    def wait_until_all_go_round(self) -> None:
        """Blocks until each role has gone round once more."""
        before = self.rounds()

        def all_are_further() -> bool:
            now = self.rounds()
            return all(now[role] > rounds for role, rounds in before.items())

        wait_until(all_are_further)

    def stop(self) -> Outcome:
        """Ends one process after another.

        Writers may wait until samplers have taken items, so their processes are the first.
        """
        outcome = Outcome()
        for program in self._programs:
            program.tell("stop")
            told = json.loads(program.line(2 * DEADLINE_S))
            for table, values in told["confirmed"].items():
                outcome.confirmed[table] += values
            for table, values in told["sampled"].items():
                outcome.sampled[table] += values
            outcome.errors += told["errors"]
            if program.errors:
                outcome.errors.append(program.errors)
        return outcome


@contextlib.contextmanager
def two_servers(directory: pathlib.Path, *, has_stores: bool) -> Iterator[list[RestartedServer]]:
    """Two servers, each with its own directory."""
    servers: list[RestartedServer] = []
    try:
        for name, port in zip("ab", free_ports(2), strict=True):
            servers.append(RestartedServer(directory / name, port, has_store=has_stores))
        yield servers
    finally:
        for server in servers:
            server.kill()


@contextlib.contextmanager
def load(address: str, *roles: tuple[str, ...]) -> Iterator[Load]:
    """Clients that are at work when the block begins."""
    running = Load(address, *roles)
    try:
        yield running
    finally:
        running.kill()
