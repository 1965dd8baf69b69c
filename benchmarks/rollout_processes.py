# SPDX-License-Identifier: Apache-2.0
"""Processes of the benchmark of rollouts: servers, and ends between which items travel.

An item is a number and some rollouts, each a slice of noise that is found by the number. `Remote`
runs an object in a process of its own: a server, or a producer or consumer of items.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import multiprocessing
import pathlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

TABLE = "train"
QUEUE = "queue"
# Items that a queue holds.
QUEUE_SIZE = 16
_OFFSETS = 65_521
_NOISE = 262_144
_PROCESSES = multiprocessing.get_context("spawn")


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
      rounds: Number of measurements of each subject.
      is_quick: To see that it runs.
    """

    rounds: int
    is_quick: bool

    def size(self, usual: int) -> int:
        """The number of items or calls of a case, which is usually this."""
        return max(usual // 10, 2) if self.is_quick else usual


@dataclasses.dataclass(frozen=True)
class Shape:
    """What an item has: rollouts, each of as many tokens (int32) with log-probabilities."""

    rollouts: int
    tokens: int

    @property
    def item_bytes(self) -> int:
        """Payload of an item."""
        return self.rollouts * self.tokens * 8


class Noise:
    """Noise that does not compress: the values of all rollouts."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._tokens = generator.integers(0, 2**31, _NOISE, np.int32)
        self._logprobs = generator.random(_NOISE, np.float32)

    def rollouts(self, number: int, shape: Shape) -> list[dict[str, np.ndarray]]:
        """The rollouts of the item with this number: views, which cost nothing to make."""
        rows = []
        for rollout in range(shape.rollouts):
            at = (number * shape.rollouts + rollout) * 7919 % _OFFSETS
            part = slice(at, at + shape.tokens)
            rows.append({"tokens": self._tokens[part], "logprobs": self._logprobs[part]})
        return rows

    def check(self, taken: Taken, shape: Shape) -> None:
        """Compares each byte of items with what their numbers say."""
        at = 0
        for number in taken.numbers:
            for rollout in self.rollouts(number, shape):
                part = slice(at, at + shape.tokens)
                for name, got in (("tokens", taken.tokens), ("logprobs", taken.logprobs)):
                    if not np.array_equal(got[part].view(np.int32), rollout[name].view(np.int32)):
                        raise ValueError(f"{name} of item {number} are not what was sent")
                at += shape.tokens
        if at != len(taken.tokens) or at != len(taken.logprobs):
            raise ValueError(f"{len(taken.tokens)} tokens have come, not {at}")


@dataclasses.dataclass(frozen=True)
class Taken:
    """Items as a consumer has got them, one after another.

    Attributes:
      numbers: Their numbers.
      tokens: Of all rollouts, `[T]`.
      logprobs: As `tokens`.
    """

    numbers: list[int]
    tokens: np.ndarray
    logprobs: np.ndarray


class Remote:
    """An object in a process of its own, with a method for each thing that it is asked."""

    def __init__(self, subject: Any) -> None:
        self._pipe, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_run, args=(theirs, subject), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Remote:
        self.answer()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, method: str, *arguments: Any) -> None:
        """Calls a method, and does not wait."""
        self._pipe.send((method, arguments))

    def answer(self) -> Any:
        """What the call returns that was told."""
        value = self._pipe.recv()
        if isinstance(value, Exception):
            raise value
        return value

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method, and waits."""
        self.tell(method, *arguments)
        return self.answer()

    def kill(self) -> None:
        """Ends the process at once, by SIGKILL."""
        self._process.kill()
        self._process.join()


def _run(pipe: Any, subject: Any) -> None:
    try:
        subject.open()
        pipe.send("open")
        while True:
            method, arguments = pipe.recv()
            pipe.send(getattr(subject, method)(*arguments))
    except EOFError:
        return
    except Exception as error:
        pipe.send(RuntimeError(f"{type(subject).__name__}: {error!r}"))
        raise


class End:
    """An end of a way; each way has a class, whose object serves as either end.

    Attributes:
      confirms: Whether a put returns when the item is where others can have it.
    """

    confirms = True

    def open(self) -> None:
        """Connects, in the process of the end."""
        self.noise = Noise()
        self.connect()

    def connect(self) -> None:
        """Makes the connections of the way."""

    def put(self, number: int, shape: Shape) -> None:
        """Sends an item, and waits until it is confirmed."""
        raise NotImplementedError

    def take(self, count: int, shape: Shape) -> Taken:
        """Waits for that many items and returns them."""
        raise NotImplementedError

    def settle(self) -> None:
        """Lets go of what `take` has returned last."""

    def put_begin(self, number: int, shape: Shape) -> None:
        """Sends an item but for what completes it."""

    def put_end(self, number: int, shape: Shape) -> None:
        """Sends what completes an item."""
        self.put(number, shape)

    async def grow(self, number: int, shape: Shape, spent_s: list[float]) -> None:
        """Sends the rollouts of an item one by one, and adds how long each call took."""
        raise NotImplementedError

    def begin(self, first: int, count: int, shape: Shape) -> None:
        """Sends items, the last one but for what completes it."""
        for number in range(first, first + count - 1):
            self.put(number, shape)
        self.put_begin(first + count - 1, shape)

    def finish(self, number: int, shape: Shape) -> tuple[int, int]:
        """Completes an item when the consumer waits; returns when it did, and was confirmed."""
        # Of different length, so that polls come at all times.
        time.sleep(random.uniform(0.02, 0.03))
        began = time.monotonic_ns()
        self.put_end(number, shape)
        return began, time.monotonic_ns()

    def fill(self, first: int, count: int, shape: Shape) -> tuple[int, int]:
        """Sends items one after another; returns when it began and ended."""
        began = time.monotonic_ns()
        for number in range(first, first + count):
            self.put(number, shape)
        return began, time.monotonic_ns()

    def prompts(self, first: int, count: int) -> None:
        """Sends what items have before they grow."""

    def grow_all(
        self, first: int, count: int, shape: Shape, coroutines: int
    ) -> tuple[float, list[float]]:
        """Sends rollouts from coroutines; returns the seconds of all and of each call."""
        return asyncio.run(self._grow_all(first, count, shape, coroutines))

    async def _grow_all(
        self, first: int, count: int, shape: Shape, coroutines: int
    ) -> tuple[float, list[float]]:
        numbers, spent_s = iter(range(first, first + count)), []

        async def work() -> None:
            for number in numbers:
                await self.grow(number, shape, spent_s)

        async with self.growing():
            began = time.perf_counter()
            await asyncio.gather(*[work() for _ in range(coroutines)])
            return time.perf_counter() - began, spent_s

    @contextlib.asynccontextmanager
    async def growing(self) -> Any:
        """Connects for `grow`."""
        yield

    def drain(self, count: int, batch: int, shape: Shape) -> int:
        """Takes items in batches; returns when it had the last one, and checks all then."""
        parts = []
        while count:
            parts.append(self.take(min(batch, count), shape))
            self.settle()
            count -= len(parts[-1].numbers)
        ended = time.monotonic_ns()
        for part in parts:
            self.noise.check(part, shape)
        return ended

    def drain_grown(self, count: int, batch: int, shape: Shape) -> None:
        """As `drain`, items whose rollouts came one by one."""
        self.drain(count, batch, shape)

    def take_once(self, count: int, shape: Shape) -> int:
        """As `drain`, in one batch, which is settled later."""
        taken = self.take(count, shape)
        ended = time.monotonic_ns()
        self.noise.check(taken, shape)
        self.settle()
        return ended


class Counter:
    """A relay before a server that counts the bytes of its clients.

    Attributes:
      sent: Bytes that clients have sent.
      received: Bytes that clients have received.
    """

    def __init__(self, address: str) -> None:
        self.sent = self.received = 0
        self._server = address.rpartition(":")[2]
        self._listener = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("localhost", int(self._server)))
            for ends, name in (((client, server), "sent"), ((server, client), "received")):
                threading.Thread(target=self._relay, args=(*ends, name), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, name: str) -> None:
        # Both ends close when one of them does.
        with contextlib.suppress(OSError), source, target:
            while part := source.recv(1 << 20):
                setattr(self, name, getattr(self, name) + len(part))
                target.sendall(part)


@dataclasses.dataclass
class ReverbServer:
    """A server with a table with rollouts, and a queue.

    Attributes:
      settings: Settings of the table.
      lease_grace_s: How long a client that was lost keeps its items.
      prompt: Shape of its prompts.
    """

    settings: dict[str, Any]
    lease_grace_s: float
    prompt: tuple[int | None, ...]

    def open(self) -> None:
        """Starts it."""
        import reverb

        spec = reverb.specs.TensorSpec
        signature = {"tokens": spec([None], np.int32), "logprobs": spec([None], np.float32)}
        signature["prompt"] = spec(self.prompt, np.int32)
        settings = {"max_items": 1_000_000} | self.settings
        grown = reverb.Table.rollouts(TABLE, 8, signature, **settings)
        tables = [grown, reverb.Table.queue(QUEUE, QUEUE_SIZE)]
        self._server = reverb.Server(tables, lease_grace_s=self.lease_grace_s)

    def address(self) -> str:
        """Where it is."""
        return f"localhost:{self._server.port}"


@contextlib.contextmanager
def open_server(
    lease_grace_s: float = 10.0, prompt: tuple[int | None, ...] = (None,), **settings: Any
) -> Iterator[tuple[str, Remote]]:
    """Starts a server; yields its address and its process."""
    with Remote(ReverbServer(settings, lease_grace_s, prompt)) as server:
        yield server.ask("address"), server


def cpu_s(pid: int) -> float:
    """The time of processors of all threads that a process has."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
