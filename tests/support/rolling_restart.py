# SPDX-License-Identifier: Apache-2.0
"""Two `reverb_server` processes that restart in turn, and clients in processes of their own.

Each value that a client inserts is a number of its own, so that at the end each can be accounted
for: it is in a table of a server, or somebody has sampled it.
"""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import signal
import socket
from collections.abc import Iterator
from typing import Any

import reverb
from support.programs import Program
from support.reverb_server import COMMAND
from support.waiting import DEADLINE_S

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

# Clients: a thread for each role on the command line, until a line comes. Then each ends in good
# order, and one line tells what is confirmed, what was sampled, and which errors there were.
CLIENTS = """
import itertools
import json
import sys
import threading
import time
import traceback

import numpy as np

import reverb

ROWS = 16
STEP = 10**9
address, number, *roles = sys.argv[1:]
stopped = threading.Event()
outcome = {"replay": [], "queue": [], "sampled": [], "seen": [], "errors": [], "rounds": {}}


def confirm(values, tables=("replay", "queue")):
    for table in tables:
        outcome[table] += [int(value) for value in values]


def batches(first):
    for start in itertools.count(first, ROWS):
        if stopped.is_set():
            return
        yield np.arange(start, start + ROWS)
        # Leaves the processor to the servers, most of the time.
        time.sleep(0.002)


def insert_batch(client, first):
    for values in batches(first):
        client.insert_batch([values], {"replay": 1.0, "queue": 1.0})
        confirm(values)
        yield


def insert(client, first):
    for values in batches(first):
        client.insert([values[0]], {"replay": 1.0, "queue": 1.0})
        confirm(values[:1])
        yield


def trajectory_writer(client, first):
    with client.trajectory_writer(2) as writer:
        for values in batches(first):
            for value in values:
                writer.append([value])
                for table in ("replay", "queue"):
                    writer.create_item(table, 1.0, [writer.history[0][-1:]])
            writer.flush()
            confirm(values)
            yield


def writer_that_runs_ahead(client, first):
    # It flushes at the end of its episodes only.
    with client.trajectory_writer(1) as writer:
        written = []
        for values in batches(first):
            for value in values:
                writer.append([value])
                writer.create_item("replay", 1.0, [writer.history[0][-1:]])
            written.extend(values)
            if len(written) > 20 * ROWS:
                writer.end_episode()
                confirm(written, ["replay"])
                written.clear()
            yield
        writer.flush()
        confirm(written, ["replay"])


def batched_writer(client, first):
    with client.batched_trajectory_writer(ROWS, 1) as writer:
        for values in batches(first):
            writer.append([values])
            for table in ("replay", "queue"):
                writer.create_items(table, 1.0, [writer.history[0][-1:]])
            writer.flush()
            confirm(values)
            yield


def sequence_writer(client, first):
    with client.sequence_writer(["replay", "queue"], 1) as writer:
        for values in batches(first):
            for value in values:
                writer.append([value])
            writer.flush()
            confirm(values)
            yield


def legacy_writer(client, first):
    with client.writer(1, chunk_length=1) as writer:
        for values in batches(first):
            for value in values:
                writer.append([value])
                writer.create_item("replay", 1, 1.0)
                writer.create_item("queue", 1, 1.0)
            writer.flush()
            confirm(values)
            yield


def new_writers(client, first):
    for values in batches(first):
        with client.trajectory_writer(1) as writer:
            for value in values:
                writer.append([value])
                writer.create_item("queue", 1.0, [writer.history[0][-1:]])
        confirm(values, ["queue"])
        yield


def sample_batch(client, first):
    while not stopped.is_set():
        try:
            batch = client.sample_batch("queue", ROWS, timeout_ms=50)
        except reverb.DeadlineExceededError:
            pass
        else:
            outcome["sampled"] += batch.data[0].ravel().tolist()
        yield


def sample(client, first):
    while not stopped.is_set():
        try:
            for steps in client.sample("queue", 3 * ROWS, timeout_ms=50):
                outcome["sampled"] += [int(step.data[0]) for step in steps]
        except reverb.DeadlineExceededError:
            pass
        yield


def sample_one(client, first):
    while not stopped.is_set():
        try:
            for steps in client.sample("queue", 1, timeout_ms=50):
                outcome["sampled"] += [int(step.data[0]) for step in steps]
        except reverb.DeadlineExceededError:
            pass
        yield


def learner(client, first):
    # Its items are those of one server or the other; updates of unknown keys have no effect.
    while not stopped.is_set():
        batch = client.sample_batch("replay", 64)
        client.update_priorities("replay", batch.info.key, np.ones(64))
        outcome["seen"] = batch.data[0].ravel().tolist()
        yield


def learner_one_by_one(client, first):
    while not stopped.is_set():
        for sample in client.sample("replay", 64, emit_timesteps=False):
            client.mutate_priorities("replay", {sample.info.key: 2.0})
        client.server_info()
        yield


def run(role, index):
    try:
        # Each has connections of its own.
        client = reverb.Client(address)
        for _ in globals()[role](client, (1 + index + 100 * int(number)) * STEP):
            outcome["rounds"][role] = outcome["rounds"].get(role, 0) + 1
    except BaseException:
        outcome["errors"].append(f"{role}: {traceback.format_exc()}")


threads = [
    threading.Thread(target=run, args=(role, index), daemon=True)
    for index, role in enumerate(roles)
]
for thread in threads:
    thread.start()
while set(outcome["rounds"]) != set(roles) and not outcome["errors"]:
    time.sleep(0.001)
print("at work", flush=True)


def tell_rounds():
    print(json.dumps(outcome["rounds"]), flush=True)


for line in sys.stdin:
    if line.strip() == "stop":
        break
    tell_rounds()
stopped.set()
for role, thread in zip(roles, threads):
    thread.join(40)
    if thread.is_alive():
        where = "".join(traceback.format_stack(sys._current_frames()[thread.ident]))
        outcome["errors"].append(f"{role} hangs: {where}")
print(json.dumps(outcome), flush=True)
"""

WRITERS = (
    "insert_batch",
    "insert",
    "trajectory_writer",
    "writer_that_runs_ahead",
    "batched_writer",
    "sequence_writer",
    "legacy_writer",
    "new_writers",
)
SAMPLERS = ("sample_batch", "sample", "sample_one", "learner", "learner_one_by_one")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for it in sockets:
            it.bind(("127.0.0.1", 0))
        return [it.getsockname()[1] for it in sockets]


class RestartedServer:
    """A `reverb_server` on a port of its own that loads what it saved when it was stopped."""

    def __init__(self, directory: pathlib.Path, port: int, config: str = CONFIG) -> None:
        self.address = f"127.0.0.1:{port}"
        self._options = [
            f"--port={port}",
            "--host=127.0.0.1",
            f"--config={config}",
            f"--checkpoint-dir={directory}",
            "--checkpoint-on-stop",
            f"--drain-timeout={DEADLINE_S}",
        ]
        self.start()

    def start(self) -> None:
        """Starts it; returns when it is ready."""
        self._program = Program(COMMAND, *self._options)
        assert "is ready on port" in self._program.line()

    def stop(self) -> None:
        """Stops it by SIGTERM; it drains and saves."""
        self._program.signal(signal.SIGTERM)
        code = self._program.ended()
        errors = self._program.errors
        self._program.__exit__()
        assert code == 0, errors
        expected = "reverb_server: stopping after SIGTERM\nreverb_server: stopped\n"
        assert errors == expected, "a stop in good order says nothing else"

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
        """What a table holds."""
        return [int(sample.data[0][0]) for sample in self.client().scan(table)]


class Load:
    """Processes with clients of an address, each a thread for each of its roles."""

    def __init__(self, address: str, *roles: tuple[str, ...]) -> None:
        self._programs = [
            Program(CLIENTS, address, number, *each) for number, each in enumerate(roles)
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

    def stop(self) -> dict[str, Any]:
        """Ends one process after another; returns what all together have done.

        Writers may wait until samplers have taken items, so their processes are the first.
        """
        told = []
        for program in self._programs:
            program.tell("stop")
            told.append(json.loads(program.line(2 * DEADLINE_S)))
        errors = [program.errors for program in self._programs if program.errors]
        total = {name: sum((it[name] for it in told), []) for name in told[0] if name != "rounds"}
        return total | {"logs": errors}


@contextlib.contextmanager
def two_servers(directory: pathlib.Path, config: str = CONFIG) -> Iterator[list[RestartedServer]]:
    """Two servers, each with its own directory."""
    servers: list[RestartedServer] = []
    try:
        for name, port in zip("ab", free_ports(2), strict=True):
            servers.append(RestartedServer(directory / name, port, config))
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
