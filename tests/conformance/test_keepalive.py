# SPDX-License-Identifier: Apache-2.0
"""Long waits, frozen peers and vanished ones, where one end is dm-reverb.

gRPC's own library closes a connection on which it gets a few pings within minutes.
"""

import signal

import pytest

from support.compared_packages import PAIRS_WITH_OURS
from support.package_workers import Worker
from support.wire.ping_counter import PingCounter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.parametrize(("client", "server"), PAIRS_WITH_OURS),
]

# It allows a ping every five minutes, and two beyond that: pings every 10 s would end connections
# several times.
_WAIT_SECONDS = 120


def test_a_sampler_that_waits_for_two_minutes_gets_its_item(
    serve, start_worker, worker_of, client, server
):
    address = serve(server, {"max_times_sampled": 1})
    line = PingCounter(address)
    sampling: Worker = start_worker(client)
    sampling.call("open_samples", address=line.address, count=2)
    sampling.submit("take", count=2)
    assert sampling.busy(5)
    connections = line.connections
    assert sampling.busy(_WAIT_SECONDS)
    # Ours sends one when it connects. The peer's client has some of its own, by which it measures.
    if client == server:
        assert min(line.pings.values()) >= _WAIT_SECONDS / 10 - 1
    else:
        assert line.pings["client" if client == "ours" else "server"] == int(client == "ours")
    assert line.connections == connections
    worker_of("ours", "client").call(
        "insert", address=address, values=[1, 2], priorities={"table": 1.0}
    )
    assert sampling.result() == [1, 2]
    line.close()


def test_a_server_that_is_frozen_for_four_seconds_loses_nothing(
    serve, start_worker, worker_of, client, server
):
    address = serve(server, {"max_times_sampled": 1})
    frozen: Worker = worker_of(server, "server")
    peer: Worker = start_worker(client)
    sampling: Worker = start_worker(client)
    sampling.call("open_samples", address=address, count=200)
    peer.call("open_writer", address=address)
    peer.call("write_values", values=list(range(100)))
    peer.call("flush_writer")
    sampling.submit("take", count=200)
    # A ping goes every ten seconds, so one of these meets one where pings go at all.
    for begin in range(100, 200, 25):
        frozen.signal(signal.SIGSTOP)
        peer.call("write_values", values=list(range(begin, begin + 25)))
        assert sampling.busy(4)
        frozen.signal(signal.SIGCONT)
        peer.call("flush_writer")
    assert sorted(sampling.result()) == list(range(200))
