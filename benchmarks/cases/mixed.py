# SPDX-License-Identifier: Apache-2.0
"""Training: inserting, sampling and updating priorities at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import actors
import measure
import numpy as np
import payloads
from servers import TableSpec, open_server

from cases.case import Case, Metric
from cases.sampling import BATCH, sample_batch

Figures = Mapping[str, measure.Figure]

_SAMPLES_PER_INSERT = 8.0
_MIN_SIZE = 1_000
# More than any learner uses up; the actor is ended with the case.
_WITHOUT_END = 100_000_000


def _samples_of(client: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns a batch through `client.sample`, as a program for the peer has to."""
    samples = list(client.sample("table", BATCH, emit_timesteps=False))
    columns = [np.stack(column) for column in zip(*(s.data for s in samples), strict=True)]
    return np.asarray([sample.info.key for sample in samples], np.uint64), columns


def _one_process(scale: measure.Scale) -> Figures:
    """One thread inserts 32 items, samples a batch, updates its priorities, and begins again."""
    with open_server("remote", [TableSpec(sampler="prioritized", max_size=100_000)]) as server:
        actor = actors.TrajectoryActor(server.client, payloads.SMALL)
        actor.write(_MIN_SIZE)

        def learn(count: int) -> None:
            for _ in range(count):
                actor.write(BATCH // int(_SAMPLES_PER_INSERT))
                _learn_once(server.client, _samples_of)

        return {"rate": measure.rate(learn, scale, server_cpu=server.cpu_seconds)}


def _actor_and_learner(
    scale: measure.Scale, *, fetch: Callable[[Any], tuple[np.ndarray, list[np.ndarray]]]
) -> Figures:
    """An actor process writes as fast as the limiter lets it; this process learns."""
    table = TableSpec(
        sampler="prioritized",
        max_size=100_000,
        samples_per_insert=_SAMPLES_PER_INSERT,
        min_size=_MIN_SIZE,
    )
    with (
        open_server("remote", [table]) as server,
        actors.open_actors(1, server.address, payloads.SMALL) as processes,
    ):
        processes.start(_WITHOUT_END)

        def learn(count: int) -> None:
            for _ in range(count):
                _learn_once(server.client, fetch)

        return {"rate": measure.rate(learn, scale, server_cpu=server.cpu_seconds)}


def _learn_once(client: Any, fetch: Callable[[Any], tuple[np.ndarray, list[np.ndarray]]]) -> None:
    keys, columns = fetch(client)
    payloads.SMALL.require([column[0] for column in columns])
    errors = np.abs(columns[2].reshape(-1)) + 1.0
    client.mutate_priorities(
        "table", updates=dict(zip(keys.tolist(), errors.tolist(), strict=True))
    )


def _metric(target_ratio: float | None = None) -> tuple[Metric]:
    return (Metric("rate", "learner steps/s", target_ratio=target_ratio),)


CASES = (
    Case(
        "mixed_one_process",
        "One thread: insert 32, client.sample a batch of 256, update 256 priorities.",
        _one_process,
        _metric(),
    ),
    Case(
        "mixed_actor_and_learner",
        "An actor process inserts, a learner client.samples batches of 256 and updates priorities, "
        "8 samples per insert.",
        partial(_actor_and_learner, fetch=_samples_of),
        _metric(target_ratio=4),
    ),
    Case(
        "mixed_actor_and_learner_batches",
        "An actor process and a learner that takes client.sample_batch if the package has it.",
        partial(_actor_and_learner, fetch=sample_batch),
        _metric(),
    ),
)
