# SPDX-License-Identifier: Apache-2.0
"""Servers of dm-reverb as shards of a group, and its writers at shards of ours."""

import numpy as np
import pytest

import reverb
from support.waiting import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.conformance]

_TABLE = {"name": "table", "sampler": "Prioritized 0.6"}


@pytest.fixture
def places(start_worker):
    """Two servers of dm-reverb and one of ours."""
    workers = [start_worker(package) for package in ("peer", "ours", "peer")]
    yield [f"localhost:{it.call('start_server', tables=[_TABLE], port=None)}" for it in workers]
    for worker in workers:
        worker.call("stop_server")


def test_servers_of_dm_reverb_are_shards(places):
    client = reverb.Client("shards:///" + ",".join(places))
    priorities = np.linspace(0.1, 5.0, 600)
    # Fewer rows than 1,024 a shard go to one shard, in turn.
    for rows in np.split(np.arange(600), 3):
        client.insert_batch([rows], {"table": priorities[rows]})
    sizes = [reverb.Client(place).server_info()["table"].current_size for place in places]
    assert sizes == [200, 200, 200]
    total = float((priorities**0.6).sum())

    def errors():
        info = client.sample_batch("table", 256).info
        return float(np.abs(info.probability / (info.priority**0.6 / total) - 1).max())

    # The masses of servers that do not tell them are learned from what they sample.
    wait_until(lambda: errors() < 1e-6)
    assert errors() < 1e-6
    info = client.sample_batch("table", 256).info
    client.update_priorities("table", info.key, np.full(256, 7.0))
    new = {}
    for _ in range(40):
        info = client.sample_batch("table", 256).info
        new.update(zip(info.key.tolist(), info.priority.tolist(), strict=True))
    changed = {key for key, priority in new.items() if priority == 7.0}
    assert len(changed) > 100
    sampled = client.sample("table", 50)
    assert len(list(sampled)) == 50
    client.reset("table")
    assert client.server_info()["table"].current_size == 0


def test_keys_of_dm_reverb_writers_are_found(places, start_worker):
    writer = start_worker("peer")
    for place in places:
        writer.call("open_writer", address=place)
        writer.call("write_values", values=list(range(50)))
        writer.call("flush_writer")
        writer.call("close_writer")
    client = reverb.Client("shards:///" + ",".join(places))
    wait_until(lambda: client.server_info()["table"].current_size == 150)
    seen: dict[int, float] = {}
    for _ in range(40):
        info = client.sample_batch("table", 64).info
        client.update_priorities("table", info.key, np.full(64, 3.0))
        info = client.sample_batch("table", 64).info
        seen.update(zip(info.key.tolist(), info.priority.tolist(), strict=True))
    assert set(seen.values()) <= {1.0, 3.0}
    client.update_priorities("table", list(seen), np.full(len(seen), 9.0))
    info = client.sample_batch("table", 256).info
    known = [p for k, p in zip(info.key.tolist(), info.priority.tolist(), strict=True) if k in seen]
    assert set(known) == {9.0}
