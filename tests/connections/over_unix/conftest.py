# SPDX-License-Identifier: Apache-2.0
"""Every server has a Unix socket, and clients reach it there and nowhere else."""

import functools

import pytest

import reverb
from support.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def sockets(tmp_path_factory):
    """A directory of sockets, by another name of it, so that no client recognises its process."""
    directory = tmp_path_factory.mktemp("s")
    (directory / "real").mkdir()
    (directory / "link").symlink_to("real")
    return directory / "link"


@pytest.fixture(scope="module", autouse=True)
def every_server_has_a_socket(sockets):
    """Named after its port, so a server that comes back has the same."""
    init = reverb.Server.__init__

    @functools.wraps(init)
    def with_socket(self, *args, **options):
        init(self, *args, **options, unix_path=sockets.parent / "real" / "new")
        (sockets / "new").rename(sockets / str(self.port))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reverb.Server, "__init__", with_socket)
        yield


@pytest.fixture(scope="module")
def path():
    """How clients reach the server."""
    return "remote"


@pytest.fixture(scope="module")
def connect(sockets):
    """Makes a client of a server: `client = connect(server)`."""

    def connect(server, **options):
        options = {"connect_timeout_s": DEADLINE_S} | options
        return reverb.Client(f"unix:{sockets}/{server.port}", **options)

    return connect


@pytest.fixture(scope="module")
def reach(sockets):
    """The same server: `with testing.server() as made: client = reach(made)`."""

    def reach(client):
        port = client.server_address.rpartition(":")[2]
        return reverb.Client(f"unix:{sockets}/{port}", connect_timeout_s=DEADLINE_S)

    return reach
