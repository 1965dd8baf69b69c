# SPDX-License-Identifier: Apache-2.0
"""Writing: trajectory writers, structured writers, legacy writers and `client.insert`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import actors
import measure
import payloads
from servers import TableSpec, open_server

from cases.case import Case, items_per_second

Figures = Mapping[str, measure.Figure]

# Items a table holds while large payloads are written: enough for eviction to be part of the work.
_TABLE_BYTES = 256 * 1024 * 1024


def table_for(payload: payloads.Payload) -> TableSpec:
    """Returns a table that holds at most `_TABLE_BYTES` of `payload`, and a million items."""
    return TableSpec(max_size=max(16, min(1_000_000, _TABLE_BYTES // payload.bytes_per_step)))


def _one_writer(
    scale: measure.Scale,
    *,
    where: str,
    payload: payloads.Payload,
    chunk_length: int | None = None,
) -> Figures:
    with open_server(where, [table_for(payload)]) as server:
        actor = actors.TrajectoryActor(server.client, payload, chunk_length=chunk_length)
        if payload is payloads.LARGE:
            # A full table: otherwise the figure would measure the allocation of new memory.
            actor.write(table_for(payload).max_size)
        figure = measure.rate(actor.write, scale, server_cpu=server.cpu_seconds)
        (sample,) = server.client.sample("table", 1, emit_timesteps=False)
        payload.require(sample.data)
    return {"rate": figure}


def _several_processes(scale: measure.Scale, *, number: int) -> Figures:
    with (
        open_server("remote") as server,
        actors.open_actors(number, server.address, payloads.SMALL) as writers,
    ):
        # Two rounds: the first calibrates the number of items.
        probe = 500 if scale.quick else 2_000
        count = max(probe, round(probe / writers.write(probe) * scale.seconds))
        return {
            "rate": measure.Figure(number * count / writers.write(count), operations=number * count)
        }


def _client_insert(scale: measure.Scale, *, where: str) -> Figures:
    steps = actors.pool(payloads.SMALL)
    with open_server(where) as server:

        def insert(count: int) -> None:
            for i in range(count):
                server.client.insert(steps[i % len(steps)], {"table": 1.0})

        return {"rate": measure.rate(insert, scale, server_cpu=server.cpu_seconds)}


def _legacy_writer(scale: measure.Scale) -> Figures:
    steps = actors.pool(payloads.SMALL)
    with open_server("remote") as server:

        def write(count: int) -> None:
            with server.client.writer(max_sequence_length=1) as writer:
                for i in range(count):
                    writer.append(steps[i % len(steps)])
                    writer.create_item("table", 1, 1.0)

        return {"rate": measure.rate(write, scale, server_cpu=server.cpu_seconds)}


def _structured_writer(scale: measure.Scale) -> Figures:
    import reverb

    steps = actors.pool(payloads.SMALL)
    pattern = reverb.structured.pattern_from_transform(
        steps[0], lambda step: {name: step[name][-1:] for name in step}
    )
    config = reverb.structured.create_config(pattern, "table")
    with open_server("remote") as server:
        writer = server.client.structured_writer([config])

        def write(count: int) -> None:
            for i in range(count):
                writer.append(steps[i % len(steps)])
            writer.flush()

        return {"rate": measure.rate(write, scale, server_cpu=server.cpu_seconds)}


CASES = (
    Case(
        "insert_small_remote",
        "One trajectory writer, one step per item, flush at the end; server in its own process.",
        partial(_one_writer, where="remote", payload=payloads.SMALL),
        (items_per_second(target_ratio=5),),
    ),
    Case(
        "insert_small_in_process",
        "One trajectory writer, one step per item; client and server in one process.",
        partial(_one_writer, where="in_process", payload=payloads.SMALL),
        (items_per_second(target_ratio=8),),
    ),
    Case(
        "insert_small_two_steps_remote",
        "One trajectory writer, items of the last two steps, so that neighbours share a step.",
        partial(_one_writer, where="remote", payload=payloads.SMALL_TWO_STEPS),
        (items_per_second(target_ratio=5),),
    ),
    Case(
        "insert_small_two_steps_in_process",
        "Items of the last two steps; client and server in one process.",
        partial(_one_writer, where="in_process", payload=payloads.SMALL_TWO_STEPS),
        (items_per_second(target_ratio=8),),
    ),
    Case(
        "insert_small_chunks_of_32_remote",
        "One step per item with chunks of 32 steps.",
        partial(_one_writer, where="remote", payload=payloads.SMALL, chunk_length=32),
        (items_per_second(),),
    ),
    Case(
        "insert_small_4_processes",
        "Four client processes, one trajectory writer each.",
        partial(_several_processes, number=4),
        (items_per_second(target_ratio=4),),
    ),
    Case(
        "client_insert_remote",
        "client.insert: one confirmed item per call.",
        partial(_client_insert, where="remote"),
        (items_per_second(target_ratio=4),),
    ),
    Case(
        "client_insert_in_process",
        "client.insert; client and server in one process.",
        partial(_client_insert, where="in_process"),
        (items_per_second(),),
    ),
    Case(
        "insert_small_legacy_writer_remote",
        "client.writer, one step per item.",
        _legacy_writer,
        (items_per_second(),),
    ),
    Case(
        "insert_small_structured_writer_remote",
        "client.structured_writer with one pattern of one step.",
        _structured_writer,
        (items_per_second(),),
    ),
    Case(
        "insert_large_remote",
        "Steps of 400 kB of random float32, one per item.",
        partial(_one_writer, where="remote", payload=payloads.LARGE),
        (items_per_second(target_ratio=1.5),),
    ),
    Case(
        "insert_atari_random_remote",
        "84x84 uint8 frames of noise; an item is the last five frames.",
        partial(_one_writer, where="remote", payload=payloads.ATARI_RANDOM),
        (items_per_second(),),
    ),
    Case(
        "insert_atari_sparse_remote",
        "Mostly black 84x84 frames; an item is the last five.",
        partial(_one_writer, where="remote", payload=payloads.ATARI_SPARSE),
        (items_per_second(),),
    ),
)
