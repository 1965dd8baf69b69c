# SPDX-License-Identifier: Apache-2.0
"""Writing many environments or many steps at once, if the package supports it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import actors
import measure
import numpy as np
import payloads
from servers import open_server

from cases.case import Case, items_per_second

Figures = Mapping[str, measure.Figure]

ENVIRONMENTS = 32
BATCH = 256


def _environments(scale: measure.Scale) -> Figures:
    with open_server("remote") as server:
        batched = hasattr(server.client, "batched_trajectory_writer")
        open_writers = _one_for_all if batched else _one_for_each
        write = open_writers(server.client)
        figure = measure.rate(write, scale, server_cpu=server.cpu_seconds, per_call=ENVIRONMENTS)
    return {"rate": figure}


def _one_for_all(client: Any) -> Callable[[int], None]:
    """Returns a function that makes that many steps of all environments, by a batched writer."""
    writer = client.batched_trajectory_writer(ENVIRONMENTS, 1)
    batches = [_batch(ENVIRONMENTS, first=i) for i in range(64)]

    def write(count: int) -> None:
        for i in range(count):
            writer.append(batches[i % len(batches)])
            history = writer.history
            writer.create_items("table", 1.0, {name: history[name][-1:] for name in batches[0]})
        writer.flush()

    return write


def _one_for_each(client: Any) -> Callable[[int], None]:
    """Returns the same with a writer for each environment."""
    actors_ = [actors.TrajectoryActor(client, payloads.SMALL) for _ in range(ENVIRONMENTS)]

    def write(count: int) -> None:
        for _ in range(count):
            for actor in actors_:
                actor.enqueue(1)
        for actor in actors_:
            actor.write(0)

    return write


def _insert_batch(scale: measure.Scale) -> Figures:
    steps = actors.pool(payloads.SMALL)
    batch = _batch(BATCH, first=0)
    with open_server("remote") as server:
        client = server.client

        def insert(count: int) -> None:
            for _ in range(count):
                if hasattr(client, "insert_batch"):
                    client.insert_batch(batch, {"table": 1.0})
                else:
                    for step in steps[:BATCH]:
                        client.insert(step, {"table": 1.0})

        figure = measure.rate(insert, scale, server_cpu=server.cpu_seconds, per_call=BATCH)
        (sample,) = client.sample("table", 1, emit_timesteps=False)
        payloads.SMALL.require(sample.data)
    return {"rate": figure}


def _batch(size: int, first: int) -> payloads.Step:
    steps = [payloads.SMALL.make(first + i) for i in range(size)]
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


CASES = (
    Case(
        "insert_32_environments_remote",
        "32 environments stepped together, one item per environment and step: "
        "client.batched_trajectory_writer if the package has it, otherwise a writer for each.",
        _environments,
        (items_per_second(),),
    ),
    Case(
        "insert_batch_remote",
        "256 confirmed items: client.insert_batch if the package has it, otherwise client.insert.",
        _insert_batch,
        (items_per_second(),),
    ),
)
