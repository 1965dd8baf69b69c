# SPDX-License-Identifier: Apache-2.0
"""What `flush` promises: when it returns, the tables have the items."""

import numpy as np
import pytest

import reverb


@pytest.fixture
def table() -> reverb.Table:
    return reverb.Table(
        name="table",
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1000,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


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


def test_flush_with_a_limit_returns_while_the_last_items_are_under_way() -> None:
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
