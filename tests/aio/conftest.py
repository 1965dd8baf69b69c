# SPDX-License-Identifier: Apache-2.0
"""Servers, and clients that call them with `await`."""

import pytest

import reverb
from reverb import aio
from support.aio_tables import tables
from support.hosts import HOSTS
from support.waiting import DEADLINE_S


@pytest.fixture(params=["in_process", "remote", "unix"])
def address(request, start, tmp_path):
    """The address of a server with these tables, by each of the ways to it."""
    if request.param != "unix":
        return f"{HOSTS[request.param]}:{start(*tables()).port}"
    (tmp_path / "real").mkdir()
    # By another name of the socket, a client does not recognise its process.
    (tmp_path / "link").symlink_to("real")
    start(*tables(), unix_path=tmp_path / "real" / "socket")
    return f"unix:{tmp_path}/link/socket"


@pytest.fixture
def client(address):
    """A client of the server, for a test that is a coroutine."""
    return aio.Client(address, connect_timeout_s=DEADLINE_S)


@pytest.fixture
def watcher(address):
    """A blocking client of the same server, to see its waiting calls."""
    return reverb.Client(address)
