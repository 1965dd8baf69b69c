# SPDX-License-Identifier: Apache-2.0
"""The promise of `flush`: when it returns, the tables have the items."""

import re

import numpy as np
import pytest

import reverb
from reverb import testing
from support.writer_kinds import batched, each_of, sequence, structured, trajectory


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


@each_of(trajectory, batched, sequence, structured)
def test_a_timeout_without_a_server_says_since_when_it_is_gone(start, connect, until, make) -> None:
    server = start(reverb.Table.queue("table", max_size=1))
    client = connect(server, connect_timeout_s=60)
    writer, add = make(client)
    # The first one is confirmed, the second one is on its way, the third one comes too late.
    add()
    add()
    writer.flush(block_until_num_items=1)
    server.stop()
    add()

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
