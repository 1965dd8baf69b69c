# SPDX-License-Identifier: Apache-2.0
"""A server that stops or dies in the middle, and comes back on the same port."""

import socket

import pytest

from support.compared_packages import PAIRS_WITH_OURS

# The peer's channels wait up to 30 s before they try again.
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.parametrize(("client", "server"), PAIRS_WITH_OURS),
]

_RESUME_SECONDS = 60


class Restartable:
    """A server process of its own on one port, started again and again."""

    def __init__(self, package, start_worker):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = listener.getsockname()[1]
        self._start_worker = start_worker
        self._package = package
        self.address = f"localhost:{self._port}"
        self.start()

    def start(self):
        """Starts an empty server."""
        self._worker = self._start_worker(self._package)
        self._worker.call("start_server", tables=[{"max_times_sampled": 1}], port=self._port)

    def restart(self, how):
        """Ends the server, `stopped` or `killed`, and starts an empty one."""
        if how == "stopped":
            self._worker.call("stop_server")
        self._worker.kill()
        self.start()


@pytest.fixture
def restartable(server, start_worker):
    """The server of the test."""
    return Restartable(server, start_worker)


@pytest.fixture
def caller(client, start_worker):
    """A process for the client alone, since a failure may leave it waiting."""
    return start_worker(client)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_writer_goes_on(client, server, how, caller, restartable):
    caller.call("open_writer", address=restartable.address)
    caller.call("write_values", values=[1, 2])
    caller.call("flush_writer")
    restartable.restart(how)
    caller.call("write_values", values=[3, 4])
    caller.submit("flush_writer", timeout_ms=_RESUME_SECONDS * 1000)
    caller.result(_RESUME_SECONDS + 5)
    caller.call("close_writer")
    samples = caller.call("read", address=restartable.address, count=2, how="sample")
    assert len(samples) == 2


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_samples_go_on(client, server, how, caller, restartable):
    writer = caller
    writer.call("insert", address=restartable.address, values=[1], priorities={"table": 1.0})
    caller.call("open_samples", address=restartable.address, count=2)
    assert caller.call("take", count=1) == [1]
    restartable.restart(how)
    caller.call("insert", address=restartable.address, values=[2], priorities={"table": 1.0})
    caller.submit("take", count=1)
    assert caller.result(_RESUME_SECONDS) == [2]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_dataset_goes_on(client, server, how, caller, restartable):
    if client == "ours":
        pytest.skip("this package has no TensorFlow here; only the peer's datasets are tried")
    caller.call("insert", address=restartable.address, values=[1], priorities={"table": 1.0})
    caller.call("open_dataset", address=restartable.address, max_in_flight_samples_per_worker=1)
    assert caller.call("take", count=1) == [1]
    restartable.restart(how)
    caller.call("insert", address=restartable.address, values=[2], priorities={"table": 1.0})
    caller.submit("take", count=1)
    assert caller.result(_RESUME_SECONDS) == [2]
