# SPDX-License-Identifier: Apache-2.0
"""Fixtures that tests of several features share: servers, and the two ways to reach one."""

import contextlib
import re
import threading
import time

import pytest

import reverb
from reverb import testing

# A server of the same process is found by its loopback address and reached without a socket. This
# other spelling of 127.0.0.1 is not recognised as one, so it leads through the network.
HOSTS = {"in_process": "127.0.0.1", "remote": "127.1"}

# How long a test waits for what must happen. Never reached unless something is broken.
DEADLINE_S = 20.0


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

    def until(condition, deadline_s=DEADLINE_S):
        deadline = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < deadline, "what the test waits for did not happen"
            time.sleep(0.001)

    return until


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


class Background:
    """A call in a thread of its own."""

    def __init__(self, function, *args, **kwargs):
        self._outcome = None
        self._error = None
        self.started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(function, args, kwargs), daemon=True
        )
        self._thread.start()
        assert self.started.wait(DEADLINE_S)

    def _run(self, function, args, kwargs):
        self.started.set()
        try:
            self._outcome = function(*args, **kwargs)
        except BaseException as error:
            self._error = error

    @property
    def running(self):
        return self._thread.is_alive()

    def result(self):
        """What the call returned or raised; waits for it."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the call did not return"
        if self._error is not None:
            raise self._error
        return self._outcome


@pytest.fixture
def background():
    """Runs a call that blocks: `call = background(client.flush); ...; call.result()`."""
    return Background
