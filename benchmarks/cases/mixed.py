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
from servers import ServerUnderTest, TableSpec, open_server

from cases import datasets
from cases.case import Case, Metric
from cases.sampling import BATCH, sample_batch

Figures = Mapping[str, measure.Figure]
# Returns keys `[B]` and columns `[B, T, ...]` of a batch.
Fetch = Callable[[Any], tuple[np.ndarray, list[np.ndarray]]]

_SAMPLES_PER_INSERT = 8.0
_MIN_SIZE = 1_000
# More than any learner consumes; the actor is stopped at the end of the case.
_WITHOUT_END = 100_000_000


def _samples_of(client: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns a batch through `client.sample`, as programs for the peer must do."""
    samples = list(client.sample("table", BATCH, emit_timesteps=False))
    columns = [np.stack(column) for column in zip(*(s.data for s in samples), strict=True)]
    return np.asarray([sample.info.key for sample in samples], np.uint64), columns


def _one_process(scale: measure.Scale) -> Figures:
    """One thread inserts 32 items, samples a batch, updates its priorities, and repeats."""
    with open_server("remote", [TableSpec(sampler="prioritized", max_size=100_000)]) as server:
        actor = actors.TrajectoryActor(server.client, payloads.SMALL)
        actor.write(_MIN_SIZE)

        def learn(count: int) -> None:
            for _ in range(count):
                actor.write(BATCH // int(_SAMPLES_PER_INSERT))
                _learn_once(server.client, _samples_of)

        return {"rate": measure.rate(learn, scale, server_cpu=server.cpu_seconds)}


def _actor_and_learner(
    scale: measure.Scale, *, open_learner: Callable[[ServerUnderTest], Callable[[], None]]
) -> Figures:
    """An actor process writes as fast as the limiter allows; this process learns."""
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
        learn_once = open_learner(server)

        def learn(count: int) -> None:
            for _ in range(count):
                learn_once()

        return {"rate": measure.rate(learn, scale, server_cpu=server.cpu_seconds)}


def _calling(fetch: Fetch) -> Callable[[ServerUnderTest], Callable[[], None]]:
    """Returns a function that opens a learner that calls `fetch` for each batch."""
    return lambda server: partial(_learn_once, server.client, fetch)


def _learn_once(client: Any, fetch: Fetch) -> None:
    keys, columns = fetch(client)
    payloads.SMALL.require([column[0] for column in columns])
    errors = np.abs(columns[2].reshape(-1)) + 1.0
    client.mutate_priorities(
        "table", updates=dict(zip(keys.tolist(), errors.tolist(), strict=True))
    )


def _dataset_and_client(server: ServerUnderTest) -> Callable[[], None]:
    """Opens a learner that reads a dataset and updates priorities through the client."""
    batches = datasets.batches(server.address, payloads.SMALL, size=BATCH, workers=1)

    def fetch(_: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        batch = next(batches)
        return batch.info.key.numpy(), [batch.data[name].numpy() for name in sorted(batch.data)]

    return partial(_learn_once, server.client, fetch)


def _dataset_and_tf_client(server: ServerUnderTest) -> Callable[[], None]:
    """Opens a learner that reads a dataset and updates priorities through `TFClient`."""
    import tensorflow as tf

    import reverb

    batches = datasets.batches(server.address, payloads.SMALL, size=BATCH, workers=1)
    client = reverb.TFClient(server.address)

    def learn_once() -> None:
        batch = next(batches)
        payloads.SMALL.require([batch.data[name][0] for name in sorted(batch.data)])
        errors = tf.abs(tf.reshape(batch.data["reward"], [-1])) + 1.0
        client.update_priorities("table", batch.info.key, tf.cast(errors, tf.float64))

    return learn_once


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
        partial(_actor_and_learner, open_learner=_calling(_samples_of)),
        _metric(target_ratio=4),
    ),
    Case(
        "mixed_actor_and_learner_batches",
        "An actor process and a learner that takes client.sample_batch if the package has it.",
        partial(_actor_and_learner, open_learner=_calling(sample_batch)),
        _metric(),
    ),
    Case(
        "mixed_actor_and_learner_dataset",
        "An actor process and a learner that reads a prefetched TrajectoryDataset in batches of "
        "256 and calls client.mutate_priorities, 8 samples per insert.",
        partial(_actor_and_learner, open_learner=_dataset_and_client),
        _metric(target_ratio=4),
        needs=("tensorflow",),
    ),
    Case(
        "mixed_actor_and_learner_dataset_tf_client",
        "The same with TFClient.update_priorities.",
        partial(_actor_and_learner, open_learner=_dataset_and_tf_client),
        _metric(target_ratio=4),
        needs=("tensorflow",),
    ),
)
