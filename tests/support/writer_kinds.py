# SPDX-License-Identifier: Apache-2.0
"""A writer of each kind, and what adds an item of one step: `writer, add = make(client, table)`."""

import numpy as np
import pytest

from reverb.structured_writer import create_config, create_reference_step


def trajectory(client, table="table"):
    writer = client.trajectory_writer(2)
    # The last items wait for their chunk, so a flush has something to do.
    writer.configure((0,), num_keep_alive_refs=2, max_chunk_length=2)

    def add():
        writer.append([1])
        writer.create_item(table, 1.0, [writer.history[0][-1:]])

    return writer, add


def batched(client, table="table"):
    writer = client.batched_trajectory_writer(1, 2)

    def add():
        writer.append([np.arange(1)])
        writer.create_items(table, 1.0, [writer.history[0][-1:]])

    return writer, add


def sequence(client, table="table"):
    # Windows share chunks, so the last ones are not sent before a flush.
    writer = client.sequence_writer(table, 1)
    return writer, lambda: writer.append([1])


def structured(client, table="table"):
    step = create_reference_step([None])
    writer = client.structured_writer([create_config([step[0][-1:]], table)])
    return writer, lambda: writer.append([1])


def legacy(client, table="table"):
    writer = client.writer(1, chunk_length=1)

    def add():
        writer.append([1])
        writer.create_item(table, 1, 1.0)

    return writer, add


def each_of(*kinds):
    """The mark of a test that runs for each of these kinds, as its argument `make`."""
    return pytest.mark.parametrize("make", kinds, ids=lambda it: it.__name__)
