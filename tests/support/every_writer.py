# SPDX-License-Identifier: Apache-2.0
"""Items by each kind of writer: `EVERY_WRITER["sequence_writer"](client, "table")`."""

import numpy as np

import reverb


def _trajectory_writer(client, table, count=1):
    writer = client.trajectory_writer(1)
    for _ in range(count):
        writer.append([1.0])
        writer.create_item(table, 1.0, [writer.history[0][-1:]])
    writer.flush()
    return writer


def _batched_trajectory_writer(client, table, count=1):
    writer = client.batched_trajectory_writer(count, 1)
    writer.append([np.ones(count)])
    writer.create_items(table, 1.0, [writer.history[0][-1:]])
    writer.flush()
    return writer


def _sequence_writer(client, table, count=1):
    writer = client.sequence_writer(table, 1)
    for _ in range(count):
        writer.append([1.0])
    writer.flush()
    return writer


def structured_writer(client, table):
    """A writer of patterns that makes an item of each step."""
    pattern = reverb.structured.pattern_from_transform([0], lambda step: [step[0][-1:]])
    return client.structured_writer([reverb.structured.create_config(pattern, table)])


def _structured_writer(client, table, count=1):
    writer = structured_writer(client, table)
    for _ in range(count):
        writer.append([1.0])
    writer.flush()
    return writer


def _writer(client, table, count=1):
    writer = client.writer(1)
    for _ in range(count):
        writer.append([1.0])
        writer.create_item(table, 1, 1.0)
    writer.flush()
    return writer


# Each writes `count` items into a table, and returns the open writer when they are confirmed.
EVERY_WRITER = {
    "trajectory_writer": _trajectory_writer,
    "batched_trajectory_writer": _batched_trajectory_writer,
    "sequence_writer": _sequence_writer,
    "structured_writer": _structured_writer,
    "writer": _writer,
}
