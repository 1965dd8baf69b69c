# SPDX-License-Identifier: Apache-2.0
"""Clients of dm-reverb, which take any target of gRPC, at a Unix socket."""

import pytest

import reverb
from conformance.peer_programs.arrays import encode
from conformance.peer_programs.scenarios import SCENARIOS

pytestmark = pytest.mark.conformance


@pytest.fixture
def server(tmp_path):
    """A server with a socket in a directory with a space."""
    table = reverb.Table(
        name="table",
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1000,
        max_times_sampled=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    with reverb.Server([table], unix_path=tmp_path / "a b" / "reverb") as server:
        yield server


@pytest.fixture
def peer(worker_of):
    return worker_of("peer", "client")


def addresses(server):
    """The form that the server tells, and the one with one slash."""
    assert server.unix_address is not None
    assert server.unix_address.startswith("unix:///")
    return [server.unix_address, server.unix_address.replace("///", "/", 1)]


@pytest.mark.parametrize(
    ("scenario", "how"),
    [
        ("trajectory_every_dtype", "sample"),
        ("legacy_every_dtype", "trajectory_dataset"),
        ("many_items", "timestep_dataset"),
    ],
)
@pytest.mark.parametrize("form", [0, 1], ids=["three slashes", "one slash"])
def test_items_come_back_as_written(server, peer, scenario, how, form):
    address = addresses(server)[form]
    peer.call("write", address=address, scenario=scenario)
    expected = [[encode(column) for column in item] for item in SCENARIOS[scenario].items()]
    samples = peer.call("read", address=address, count=len(expected), how=how, scenario=scenario)
    assert [sample["columns"] for sample in samples] == expected


def test_calls_reach_the_server(server, peer):
    for address in addresses(server):
        peer.call("insert", address=address, values=[1, 2], priorities={"table": 1.0})
        assert peer.call("server_info", address=address)
    assert server.server_info()["table"].current_size == 4


def test_ops_of_tensorflow_reach_the_server(server, peer):
    address = addresses(server)[0]
    peer.call("tf_insert", address=address, values=[1], tables=["table"], priorities=[1.0])
    assert peer.call("tf_sample", address=address, count=1) == [[[1.0, -1.0], [1], ["value 1"]]]
