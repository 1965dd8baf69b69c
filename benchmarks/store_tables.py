# SPDX-License-Identifier: Apache-2.0
"""Tables of noise with and without a store, rows of its report, and how it is measured in turn."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from payloads import FRAME_SHAPE
from servers import ServerUnderTest, TableSpec, open_server

_ITEMS_OF_INSERT = 1_000


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says, with what it leaves to a case.

    Attributes:
      rounds: Number of measurements of each subject.
      directory: Where stores are made.
      is_quick: To see that it runs.
      items: Number of items of the case's table; `None`: as many as the case says.
      memory: `max_bytes` of the server with transitions; `None`: in proportion to `items`.
    """

    rounds: int
    directory: str | None
    is_quick: bool
    items: int | None
    memory: str | None

    def size(self, usual: int) -> int:
        """The number of items of a table, which is usually this."""
        return self.items or (usual // 5 if self.is_quick else usual)


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure of the report.

    Attributes:
      what: What was measured.
      value: In `unit`.
      least: The value that it should have at least, if there is one.
      most: The value that it should have at most, if there is one.
    """

    what: str
    value: float
    unit: str
    least: float | None = None
    most: float | None = None

    @property
    def verdict(self) -> str:
        """The goal and whether it is met; empty without a goal."""
        goals = (
            [(f">= {self.least:.4g}", self.value >= self.least)] if self.least is not None else []
        )
        goals += [(f"<= {self.most:.4g}", self.value <= self.most)] if self.most is not None else []
        return ", ".join(f"{goal} {'met' if is_met else 'MISSED'}" for goal, is_met in goals)


@dataclasses.dataclass(frozen=True)
class NoiseServer:
    """A server and the directory of its store, which may be empty."""

    server: ServerUnderTest
    directory: pathlib.Path

    @property
    def client(self) -> Any:
        """Its client."""
        return self.server.client

    def files(self) -> list[pathlib.Path]:
        """The data files of its store."""
        return sorted(path for path in self.directory.rglob("*") if path.stat().st_size > 4096)


@contextlib.contextmanager
def open_noise(
    where: str,
    options: Options,
    *tables: TableSpec,
    memory: str | None = None,
    checkpoint_root: str | None = None,
    journal: bool = False,
) -> Iterator[NoiseServer]:
    """Starts a server with a store if `memory` limits it or it has a journal, else without."""
    with tempfile.TemporaryDirectory(prefix="reverb-store-", dir=options.directory) as directory:
        store = str(pathlib.Path(directory) / "store") if memory or journal else None
        tables = tables or (TableSpec(),)
        with open_server(where, tables, checkpoint_root, memory, store, journal) as server:
            yield NoiseServer(server, pathlib.Path(directory))


def frame(number: int) -> np.ndarray:
    """The frame of noise with this number."""
    return np.random.default_rng(int(number)).integers(0, 256, FRAME_SHAPE, np.uint8)


def frames(numbers: Any) -> np.ndarray:
    """The frames of noise with these numbers, `[B, 84, 84]`."""
    return np.stack([frame(number) for number in numbers])


def fill(client: Any, made: np.ndarray, table: str = "table", count: int | None = None) -> None:
    """Inserts `count` items, each a frame and its number, by default all that were made."""
    count = count or len(made)
    for begin in range(0, count, _ITEMS_OF_INSERT):
        numbers = np.arange(begin, min(begin + _ITEMS_OF_INSERT, count)) % len(made)
        client.insert_batch({"frame": made[numbers], "number": numbers}, {table: 1.0})


def check(data: Any) -> int:
    """Compares each byte of frames with the generator of their numbers; returns how many."""
    made, numbers = (np.asarray(column) for column in data)
    made, numbers = made.reshape(-1, *FRAME_SHAPE), numbers.reshape(-1)
    for got, number in zip(made, numbers, strict=True):
        if not np.array_equal(got, frame(number)):
            raise ValueError(f"frame {number} came back with other bytes than were written")
    return len(numbers)


def in_turn(
    subjects: Mapping[str, Callable[[], float]], rounds: int, before: Callable[[], Any] = lambda: 0
) -> dict[str, list[float]]:
    """Measures all in turn, `rounds` times after a warm-up; `before` runs before each."""
    measured: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds + 1):
        for name, measure in subjects.items():
            before()
            measured[name].append(measure())
    return {name: values[1:] for name, values in measured.items()}


def ratio(measured: Mapping[str, list[float]], one: str, other: str) -> float:
    """The median of `one` / `other` over neighbours."""
    pairs = zip(measured[one], measured[other], strict=True)
    return statistics.median(first / second for first, second in pairs)


def medians(measured: Mapping[str, list[float]], unit: str) -> Iterator[Row]:
    """A row for each subject."""
    for name, values in measured.items():
        yield Row(name, statistics.median(values), unit)
