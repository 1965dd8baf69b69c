# SPDX-License-Identifier: Apache-2.0
"""Fixtures that tests of several features share: servers, and the two ways to reach one."""

import contextlib
import re

import pytest

import reverb
from reverb import testing
from support.hosts import HOSTS
from support.waiting import DEADLINE_S, Background, wait_until


@pytest.fixture(scope="module", params=HOSTS)
def path(request):
    """How clients reach the server: `in_process` or `remote`."""
    return request.param


@pytest.fixture
def start():
    """Starts servers that stop with the test: `server = start(table, ..., port=...)`."""
    with contextlib.ExitStack() as stack:

        def start(*tables, **options):
            server = reverb.Server(tables or [testing.table()], **options)
            return stack.enter_context(server)

        yield start


@pytest.fixture(scope="module")
def connect(path):
    """Makes a client that reaches a server by `path`: `client = connect(server)`."""

    def connect(server, **options):
        options = {"connect_timeout_s": DEADLINE_S} | options
        return reverb.Client(f"{HOSTS[path]}:{server.port}", **options)

    return connect


@pytest.fixture(scope="module")
def reach(path):
    """The same server by `path`: `with testing.server() as made: client = reach(made)`."""

    def reach(client):
        address = client.server_address.replace("127.0.0.1", HOSTS[path])
        return reverb.Client(address, connect_timeout_s=DEADLINE_S)

    return reach


@pytest.fixture
def serve(start, connect):
    """Starts a server and reaches it by `path`: `client = serve(table, ...)`."""
    return lambda *tables, **options: connect(start(*tables), **options)


@pytest.fixture
def until():
    """Blocks until a condition holds: `until(lambda: table.info.current_size == 3)`."""
    return wait_until


@pytest.fixture
def error_says():
    """Asserts the class and the whole text of an error; `{key}` stands for the key of an item."""

    def error_says(call, kind, text):
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
        pattern = re.escape(text).replace(re.escape("{key}"), r"\d+")
        assert re.fullmatch(pattern, str(caught.value)), f"{caught.value}\nis not\n{text}"

    return error_says


@pytest.fixture
def background():
    """Runs a call that blocks: `call = background(client.flush); ...; call.result()`."""
    return Background


@pytest.fixture
def root(tmp_path):
    """A directory for checkpoints; it does not exist yet."""
    return tmp_path / "checkpoints"
