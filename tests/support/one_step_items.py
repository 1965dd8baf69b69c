# SPDX-License-Identifier: Apache-2.0
"""An item of one step in `table`, by each way to write one: `write(client, step)`, or awaited."""

import numpy as np

from reverb import structured


def map_leaves(function, nest):
    """The nest with the results for its leaves, which are all that is no dict, list or tuple."""
    if isinstance(nest, dict):
        return {key: map_leaves(function, child) for key, child in nest.items()}
    if isinstance(nest, list | tuple):
        made = [map_leaves(function, child) for child in nest]
        return type(nest)(*made) if hasattr(nest, "_fields") else type(nest)(made)
    return function(nest)


def rows_of(step):
    """The step as the only row of a batch, or the only step of a sequence."""
    return map_leaves(
        lambda leaf: leaf[None] if hasattr(leaf, "shape") else np.asarray(leaf)[None], step
    )


def last_steps(history):
    return map_leaves(lambda column: column[-1:], history)


def insert(client, step):
    client.insert(step, {"table": 1.0})


def insert_batch(client, step):
    client.insert_batch(rows_of(step), {"table": 1.0})


def legacy(client, step, **options):
    with client.writer(1, chunk_length=1, **options) as writer:
        writer.append(step)
        writer.create_item("table", 1, 1.0)


def legacy_sequence(client, step):
    with client.writer(1) as writer:
        writer.append_sequence(rows_of(step))
        writer.create_item("table", 1, 1.0)


def trajectory(client, step, **options):
    with client.trajectory_writer(1, **options) as writer:
        writer.append(step)
        writer.create_item("table", 1.0, last_steps(writer.history))


def batched(client, step, **options):
    with client.batched_trajectory_writer(1, 1, **options) as writer:
        writer.append(rows_of(step))
        writer.create_items("table", 1.0, last_steps(writer.history))


def sequence(client, step, **options):
    with client.sequence_writer("table", 1, **options) as writer:
        writer.append(step)


def patterns(client, step, **options):
    reference = structured.create_reference_step(map_leaves(lambda _: None, step))
    config = structured.create_config(last_steps(reference), "table")
    with client.structured_writer([config], **options) as writer:
        writer.append(step)


async def awaited_insert(client, step):
    await client.insert(step, {"table": 1.0})


async def awaited_insert_batch(client, step):
    await client.insert_batch(rows_of(step), {"table": 1.0})


async def awaited_trajectory(client, step, **options):
    async with client.trajectory_writer(1, **options) as writer:
        writer.append(step)
        await writer.create_item("table", 1.0, last_steps(writer.history))


async def awaited_batched(client, step, **options):
    async with client.batched_trajectory_writer(1, 1, **options) as writer:
        writer.append(rows_of(step))
        await writer.create_items("table", 1.0, last_steps(writer.history))


async def awaited_sequence(client, step, **options):
    async with client.sequence_writer("table", 1, **options) as writer:
        await writer.append(step)
