# SPDX-License-Identifier: Apache-2.0
"""The promise of `flush`: when it returns, the tables have the items."""

import re

import numpy as np
import pytest

import reverb
from reverb import testing


@pytest.fixture
def table() -> reverb.Table:
    return testing.table()


def test_flush_waits_for_an_item_that_is_being_encoded(table: reverb.Table) -> None:
    # Large and compressible: encoding takes long enough that a flush falls into it.
    step = np.arange(1 << 20, dtype=np.int32) % 251
    with reverb.Server([table]) as server:
        client = server.localhost_client()
        for written in range(1, 31):
            writer = client.trajectory_writer(num_keep_alive_refs=1)
            writer.append({"x": step})
            writer.create_item("table", 1.0, {"x": writer.history["x"][-1:]})
            writer.flush()
            writer.close()
            assert table.info.current_size == written


def test_flush_with_a_limit_returns_before_the_last_items() -> None:
    queue = reverb.Table.queue("queue", max_size=2)
    with reverb.Server([queue]) as server:
        writer = server.localhost_client().trajectory_writer(num_keep_alive_refs=1)
        for step in range(5):
            writer.append({"x": step})
            writer.create_item("queue", 1.0, {"x": writer.history["x"][-1:]})
        writer.flush(block_until_num_items=3)
        assert queue.info.current_size == 2
        with pytest.raises(reverb.DeadlineExceededError, match="queue"):
            writer.flush(block_until_num_items=2, timeout_ms=50)


def one_trajectory(writer) -> None:
    writer.append({"x": np.arange(2)})
    writer.create_item("table", 1.0, {"x": writer.history["x"][-1:]})


def one_batch(writer) -> None:
    writer.append({"x": np.arange(2)})
    writer.create_items("table", 1.0, {"x": writer.history["x"][-1:]}, where=[True, False])


def one_step(writer) -> None:
    writer.append({"x": np.arange(2)})


def structured_writer(client):
    pattern = reverb.structured.pattern_from_transform({"x": 0}, lambda step: {"x": step["x"][-1]})
    return client.structured_writer([reverb.structured.create_config(pattern, "table")])


WRITERS = {
    "trajectory": (lambda client: client.trajectory_writer(1), one_trajectory),
    "batched": (lambda client: client.batched_trajectory_writer(2, 1), one_batch),
    "sequence": (lambda client: client.sequence_writer("table", 1), one_step),
    "structured": (structured_writer, one_step),
}


@pytest.mark.parametrize(("make", "add"), WRITERS.values(), ids=WRITERS)
def test_a_timeout_without_a_server_says_since_when_it_is_gone(
    start, connect, until, make, add
) -> None:
    server = start(reverb.Table.queue("table", max_size=1))
    client = connect(server, connect_timeout_s=60)
    writer = make(client)
    # The first one is confirmed, the second one is on its way, the third one comes too late.
    add(writer)
    add(writer)
    writer.flush(block_until_num_items=1)
    server.stop()
    add(writer)

    def says_that_the_connection_was_lost() -> bool:
        with pytest.raises(reverb.DeadlineExceededError) as caught:
            writer.flush(timeout_ms=100)
        text = str(caught.value)
        # Whether it was noticed already or not, the table is known.
        assert "(tables: table)" in text
        return (
            re.search(
                r"It was waiting for 2 items that are not confirmed \(tables: table\), and for a "
                rf"connection to {re.escape(client.server_address)}, which was lost \d+\.\d s ago. "
                r"The last attempt to connect failed: .*\w",
                text,
            )
            is not None
        )

    until(says_that_the_connection_was_lost)
