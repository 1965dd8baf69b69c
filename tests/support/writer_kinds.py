# SPDX-License-Identifier: Apache-2.0
"""A writer of each kind, and what adds an item of one step: `writer, add = make(client, table)`."""

import pytest

from reverb.structured_writer import create_config, create_reference_step
from support.one_step_items import rows_of

# A list with one value, as that of any other column would be.
STEP = [1]


def trajectory(client, table="table", step=STEP, **options):
    writer = client.trajectory_writer(2, **options)
    # The last items wait for their chunk, so a flush has something to do.
    writer.configure((0,), num_keep_alive_refs=2, max_chunk_length=2)

    def add():
        writer.append(step)
        writer.create_item(table, 1.0, [writer.history[0][-1:]])

    return writer, add


def batched(client, table="table", step=STEP, **options):
    writer = client.batched_trajectory_writer(1, 2, **options)

    def add():
        writer.append(rows_of(step))
        writer.create_items(table, 1.0, [writer.history[0][-1:]])

    return writer, add


def sequence(client, table="table", step=STEP, **options):
    # Windows share chunks, so the last ones are not sent before a flush.
    writer = client.sequence_writer(table, 1, **options)
    return writer, lambda: writer.append(step)


def structured(client, table="table", step=STEP, **options):
    reference = create_reference_step([None])
    writer = client.structured_writer([create_config([reference[0][-1:]], table)], **options)
    return writer, lambda: writer.append(step)


def legacy(client, table="table", step=STEP, **options):
    writer = client.writer(1, chunk_length=1, **options)

    def add():
        writer.append(step)
        writer.create_item(table, 1, 1.0)

    return writer, add


def each_of(*kinds):
    """The mark of a test that runs for each of these kinds, as its argument `make`."""
    return pytest.mark.parametrize("make", kinds, ids=lambda it: it.__name__)


def _written(make):
    """A function that writes items, and returns the open writer when they are confirmed."""

    def write(client, table, count=1):
        writer, add = make(client, table)
        for _ in range(count):
            add()
        writer.flush()
        return writer

    return write


# By the method of the client: `EVERY_WRITER["sequence_writer"](client, "table", count)`.
EVERY_WRITER = {
    "trajectory_writer": _written(trajectory),
    "batched_trajectory_writer": _written(batched),
    "sequence_writer": _written(sequence),
    "structured_writer": _written(structured),
    "writer": _written(legacy),
}
