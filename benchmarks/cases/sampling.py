# SPDX-License-Identifier: Apache-2.0
"""Reading: `client.sample`, and batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import actors
import measure
import numpy as np
import payloads
from servers import ServerUnderTest, open_server

from cases.case import Case, items_per_second
from cases.inserting import table_for

Figures = Mapping[str, measure.Figure]

BATCH = 256


def sample_batch(client: Any, table: str = "table") -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns keys `[B]` and columns `[B, T, ...]` of a batch, by the fastest public way."""
    if hasattr(client, "sample_batch"):
        batch = client.sample_batch(table, BATCH)
        return batch.info.key, list(batch.data)
    samples = list(client.sample(table, BATCH, emit_timesteps=False))
    keys = np.asarray([sample.info.key for sample in samples], np.uint64)
    return keys, _stacked([sample.data for sample in samples])


def _prepared(server: ServerUnderTest, payload: payloads.Payload, items: int) -> None:
    actor = actors.TrajectoryActor(server.client, payload)
    actor.write(items)


def _client_sample(
    scale: measure.Scale,
    *,
    where: str,
    payload: payloads.Payload,
    sampler: str = "uniform",
    items: int = 10_000,
) -> Figures:
    # Small samples as timesteps, which is the default; frames and large arrays as whole columns.
    as_timesteps = payload is payloads.SMALL
    table = dataclasses.replace(table_for(payload), sampler=sampler)
    with open_server(where, [table]) as server:
        _prepared(server, payload, min(items, table.max_size))

        def sample(calls: int) -> None:
            for _ in range(calls):
                for received in server.client.sample("table", BATCH, emit_timesteps=as_timesteps):
                    last = received
            payload.require(_stacked([step.data for step in last]) if as_timesteps else last.data)

        figure = measure.rate(sample, scale, server_cpu=server.cpu_seconds, per_call=BATCH)
    return {"rate": figure}


def _batches(
    scale: measure.Scale,
    *,
    where: str,
    payload: payloads.Payload,
    sampler: str = "uniform",
    items: int = 10_000,
) -> Figures:
    with open_server(where, [dataclasses.replace(table_for(payload), sampler=sampler)]) as server:
        _prepared(server, payload, items)

        def sample(count: int) -> None:
            for _ in range(count):
                _, columns = sample_batch(server.client)
            for row in (0, BATCH - 1):
                payload.require([column[row] for column in columns])

        figure = measure.rate(sample, scale, server_cpu=server.cpu_seconds, per_call=BATCH)
    return {"rate": figure}


def _stacked(rows: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Returns the columns of rows, each with a new leading axis."""
    return [np.stack(column) for column in zip(*rows, strict=True)]


CASES = (
    Case(
        "sample_small_remote",
        "client.sample in calls of 256, uniform.",
        partial(_client_sample, where="remote", payload=payloads.SMALL),
        (items_per_second(target_ratio=10),),
    ),
    Case(
        "sample_small_in_process",
        "client.sample in calls of 256, uniform; client and server in one process.",
        partial(_client_sample, where="in_process", payload=payloads.SMALL),
        (items_per_second(target_ratio=15),),
    ),
    Case(
        "sample_small_prioritized_remote",
        "client.sample in calls of 256, prioritized.",
        partial(_client_sample, where="remote", payload=payloads.SMALL, sampler="prioritized"),
        (items_per_second(target_ratio=10),),
    ),
    Case(
        "sample_small_prioritized_in_process",
        "client.sample in calls of 256, prioritized; client and server in one process.",
        partial(_client_sample, where="in_process", payload=payloads.SMALL, sampler="prioritized"),
        (items_per_second(target_ratio=15),),
    ),
    Case(
        "sample_large_remote",
        "client.sample of 400 kB steps.",
        partial(_client_sample, where="remote", payload=payloads.LARGE, items=200),
        (items_per_second(),),
    ),
    Case(
        "sample_large_in_process",
        "client.sample of 400 kB steps; client and server in one process.",
        partial(_client_sample, where="in_process", payload=payloads.LARGE, items=200),
        (items_per_second(),),
    ),
    Case(
        "sample_atari_random_remote",
        "client.sample of five overlapping frames of noise.",
        partial(_client_sample, where="remote", payload=payloads.ATARI_RANDOM, items=3_000),
        (items_per_second(target_ratio=4),),
    ),
    Case(
        "sample_atari_sparse_remote",
        "client.sample of five overlapping, mostly black frames.",
        partial(_client_sample, where="remote", payload=payloads.ATARI_SPARSE, items=3_000),
        (items_per_second(target_ratio=4),),
    ),
    Case(
        "sample_atari_random_in_process",
        "client.sample of five frames of noise; client and server in one process.",
        partial(_client_sample, where="in_process", payload=payloads.ATARI_RANDOM, items=3_000),
        (items_per_second(),),
    ),
    Case(
        "sample_batch_small_in_process",
        "Batches of 256 as stacked columns: client.sample_batch, or client.sample and np.stack.",
        partial(_batches, where="in_process", payload=payloads.SMALL),
        (items_per_second(target_ratio=100, limit=10e6),),
    ),
    Case(
        "sample_batch_small_prioritized_in_process",
        "Batches of 256 as stacked columns, prioritized.",
        partial(_batches, where="in_process", payload=payloads.SMALL, sampler="prioritized"),
        (items_per_second(target_ratio=100, limit=4e6),),
    ),
    Case(
        "sample_batch_small_remote",
        "Batches of 256 as stacked columns; server in its own process.",
        partial(_batches, where="remote", payload=payloads.SMALL),
        (items_per_second(),),
    ),
    Case(
        "sample_batch_atari_random_in_process",
        "Batches of 256 items of five frames of noise.",
        partial(_batches, where="in_process", payload=payloads.ATARI_RANDOM, items=3_000),
        (items_per_second(limit=150e3),),
    ),
)
