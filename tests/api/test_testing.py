# SPDX-License-Identifier: Apache-2.0
"""The helpers for tests of users' programs."""

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import DeadlineExceededError, UnavailableError


def test_a_server_runs_for_the_length_of_the_block():
    with testing.server() as client:
        client.insert([np.zeros(2)], {"table": 1.0})
        assert client.server_info()["table"].current_size == 1
    late = reverb.Client(client.server_address, connect_timeout_s=0.2)
    with pytest.raises(UnavailableError):
        late.server_info()


def test_a_server_stops_after_an_error_too():
    with pytest.raises(KeyError), testing.server() as client:
        raise KeyError
    with pytest.raises(UnavailableError):
        reverb.Client(client.server_address, connect_timeout_s=0.2).server_info()


def test_two_servers_run_side_by_side():
    with testing.server() as first, testing.server() as second:
        first.insert([1], {"table": 1.0})
        assert second.server_info()["table"].current_size == 0


def test_options_of_a_table_may_be_changed():
    info = testing.table("name", max_size=3, sampler=reverb.selectors.Lifo()).info
    assert (info.name, info.max_size) == ("name", 3)
    assert info.sampler_options.WhichOneof("distribution") == "lifo"
    assert info.remover_options.WhichOneof("distribution") == "fifo"


def test_waiting_for_items():
    with testing.server() as client:
        with client.trajectory_writer(1) as writer:
            writer.append(1)
            writer.create_item("table", 1.0, writer.history[-1])
            testing.wait_for_items(client, "table", 1)
        with pytest.raises(DeadlineExceededError, match="hold 2 items after 50 ms, it holds 1"):
            testing.wait_for_items(client, "table", 2, timeout_ms=50)
