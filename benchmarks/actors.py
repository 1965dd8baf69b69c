# SPDX-License-Identifier: Apache-2.0
"""Writing items, in this process or in several others.

Run as a program this file is one actor process: it connects, warms up, prints `ready`, and for
every number that it reads, writes that many items and prints a line when they are confirmed.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import payloads

# Steps are made once and appended repeatedly.
_POOL_BYTES = 64 * 1024 * 1024
_POOL_STEPS = 4096


def pool(payload: payloads.Payload) -> list[payloads.Step]:
    """Returns steps to write, few enough to stay in memory."""
    return payload.steps(max(8, min(_POOL_STEPS, _POOL_BYTES // payload.bytes_per_step)))


class TrajectoryActor:
    """Writes overlapping items, one per step, through one trajectory writer."""

    def __init__(
        self,
        client: Any,
        payload: payloads.Payload,
        table: str = "table",
        chunk_length: int | None = None,
        first_step: int = 0,
    ) -> None:
        """Opens the writer and fills its history; `chunk_length` overrides the automatic choice."""
        self._steps = pool(payload)
        self._next_step = first_step % len(self._steps)
        self._length = payload.steps_per_item
        self._table = table
        self._writer = client.trajectory_writer(max(self._length, chunk_length or 1))
        if chunk_length is not None:
            for name in self._steps[0]:
                self._writer.configure(
                    (name,),
                    num_keep_alive_refs=max(self._length, chunk_length),
                    max_chunk_length=chunk_length,
                )
        self._names = tuple(self._steps[0])
        for _ in range(self._length - 1):
            self._append()

    def write(self, count: int) -> None:
        """Writes `count` items and waits until all are confirmed."""
        self.enqueue(count)
        self._writer.flush()

    def enqueue(self, count: int) -> None:
        """Writes `count` items without waiting."""
        writer, names, length = self._writer, self._names, self._length
        for _ in range(count):
            self._append()
            history = writer.history
            trajectory = {name: history[name][-length:] for name in names}
            writer.create_item(self._table, 1.0, trajectory)

    def _append(self) -> None:
        if self._next_step == len(self._steps):
            # Number 0 follows the last one, and no item may span both: the check counts upwards.
            self._next_step = 0
            if self._length > 1:
                self._writer.flush()
                self._writer.end_episode()
                for _ in range(self._length - 1):
                    self._append()
        self._writer.append(self._steps[self._next_step])
        self._next_step += 1


def fill(client: Any, count: int, table: str = "table", items_per_step: int = 100) -> None:
    """Puts `count` small items into a table quickly: `items_per_step` items share each step."""
    steps = pool(payloads.SMALL)
    writer = client.trajectory_writer(1)
    for i in range(-(-count // items_per_step)):
        writer.append(steps[i % len(steps)])
        history = writer.history
        trajectory = {name: history[name][-1:] for name in history}
        for _ in range(min(items_per_step, count - i * items_per_step)):
            writer.create_item(table, 1.0, trajectory)
        writer.flush(block_until_num_items=10 * items_per_step)
    writer.flush()
    writer.close()


@dataclasses.dataclass
class ActorProcesses:
    """Several actor processes on one server."""

    processes: list[subprocess.Popen[str]]

    def write(self, count: int) -> float:
        """Makes each actor write `count` items; returns the seconds until all are done."""
        for process in self.processes:
            _send(process, str(count))
        spans = [json.loads(_receive(process)) for process in self.processes]
        return max(span["ended"] for span in spans) - min(span["started"] for span in spans)

    def start(self, count: int) -> None:
        """Makes each actor write `count` items, without waiting."""
        for process in self.processes:
            _send(process, str(count))


@contextmanager
def open_actors(
    number: int, address: str, payload: payloads.Payload, *, warmup: int = 500
) -> Iterator[ActorProcesses]:
    """Starts actor processes, waits until all are warm, and stops them at the end."""
    actors = [
        {"address": address, "payload": payload.name, "warmup": warmup, "first_step": i * 97}
        for i in range(number)
    ]
    with open_programs([[__file__, json.dumps(actor)] for actor in actors]) as processes:
        yield processes


@contextmanager
def open_programs(commands: Sequence[Sequence[str]]) -> Iterator[ActorProcesses]:
    """Starts programs that answer as this file does, waits until all are warm; stops them."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for process in processes:
            _receive(process)
        yield ActorProcesses(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _send(process: subprocess.Popen[str], line: str) -> None:
    if process.stdin is None:
        raise ValueError("the actor process was started without pipes")
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _receive(process: subprocess.Popen[str]) -> str:
    line = "" if process.stdout is None else process.stdout.readline()
    if not line:
        raise RuntimeError("an actor process ended; see its error output")
    return line


def _act() -> None:
    import reverb

    arguments = json.loads(sys.argv[1])
    actor = TrajectoryActor(
        reverb.Client(arguments["address"]),
        payloads.by_name(arguments["payload"]),
        first_step=arguments["first_step"],
    )
    actor.write(arguments["warmup"])
    obey(actor.write)


def obey(work: Callable[[int], None]) -> None:
    """Prints `ready`; does as much work as each number that it reads, and prints when it did it."""
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.monotonic()
        work(int(line))
        print(json.dumps({"started": started, "ended": time.monotonic()}), flush=True)


if __name__ == "__main__":
    _act()
