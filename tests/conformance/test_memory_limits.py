# SPDX-License-Identifier: Apache-2.0
"""Limits of memory, which dm-reverb does not know: its writers wait, its server loads the rest."""

from typing import Any

import pytest

import reverb
from reverb.errors import UnimplementedError
from support.waiting import Background, wait_until

MIB = 2**20


@pytest.mark.parametrize("package", ["ours", pytest.param("peer", marks=pytest.mark.conformance)])
@pytest.mark.parametrize("limit", ["table", "server"])
def test_a_producer_of_a_full_queue_waits(package, limit, worker_of):
    # A message of dm-reverb's writers has up to 40 MiB.
    budget, count = (16 * MIB, 400) if limit == "table" else (128 * MIB, 1500)
    table, whole = (budget, None) if limit == "table" else (None, budget)
    queue = reverb.Table.queue("queue", 10_000, max_bytes=table)
    with reverb.Server([queue], host="127.0.0.1", max_bytes=whole) as server:
        address = f"127.0.0.1:{server.port}"
        call = worker_of(package, "client").call
        producer = Background(
            call, "produce", address=address, table="queue", count=count, num_bytes=200_000
        )
        # It is full before anybody reads. A message of the peer that waits may be a third of that.
        status = server.status
        used = {
            "table": lambda: status().tables["queue"].bytes,
            "server": lambda: status().memory.total,
        }
        wait_until(lambda: used[limit]() > 0.9 * budget)
        numbers = []
        most = 0
        for sample in reverb.Client(address).sample("queue", count, emit_timesteps=False):
            numbers.append(int(sample.data[0][0]))
            if len(numbers) % 20 == 0:
                now = status()
                most = max(most, now.memory.total, now.tables["queue"].bytes)
        producer.result()
        assert numbers == list(range(count))
        info = reverb.Client(address).server_info()["queue"]
        assert info.rate_limiter_info.insert_stats.completed == count
        if limit == "table":
            assert server.status().tables["queue"].bytes == 0
        else:
            assert budget / 2 < most < 1.1 * budget


@pytest.mark.conformance
def test_the_peer_loads_a_table_with_a_limit_of_memory(worker_of, tmp_path):
    table: dict[str, Any] = {"name": "table", "ours": {"max_bytes": MIB, "when_full": "wait"}}
    ours, peer = worker_of("ours", "server"), worker_of("peer", "server")
    port = ours.call("start_server", tables=[table], checkpoints={"path": str(tmp_path)})
    address = f"localhost:{port}"
    client = worker_of("peer", "client")
    client.call("insert", address=address, values=[1, 2, 3], priorities={"table": 1.0})
    client.call("checkpoint", address=address)
    before = client.call("server_info", address=address)
    ours.call("stop_server")
    port = peer.call(
        "start_server", tables=[{"name": "table"}], checkpoints={"path": str(tmp_path)}
    )
    assert client.call("server_info", address=f"localhost:{port}") == before
    peer.call("stop_server")


@pytest.mark.conformance
def test_the_peer_does_not_tell_its_status(worker_of):
    peer = worker_of("peer", "server")
    port = peer.call("start_server", tables=[{"name": "table"}])
    with pytest.raises(UnimplementedError) as error:
        reverb.Client(f"localhost:{port}").status()
    assert str(error.value) == (
        f"The server at localhost:{port} does not report its status: it is a server of dm-reverb, "
        "or of an older release of this package."
    )
    peer.call("stop_server")
