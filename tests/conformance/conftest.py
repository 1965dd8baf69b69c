# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the conformance suite: processes with this package and with the released peer.

`REVERB_PEER_PYTHON` names an interpreter in which `import reverb` gives dm-reverb 0.14
(`benchmarks/peer/setup.sh` makes one). Tests that need it are marked `conformance` and skipped
without it.
"""

import pathlib
import sys

import pytest

from support.compared_packages import PEER_PYTHON
from support.package_workers import Worker

_HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Skips what needs the peer when there is none."""
    if PEER_PYTHON:
        return
    reason = (
        "needs dm-reverb 0.14: set REVERB_PEER_PYTHON to the Python of benchmarks/peer/setup.sh"
    )
    for item in items:
        if item.get_closest_marker("conformance") and _HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def start_worker():
    """Starts a process with one of the packages; it ends with the session."""
    started = []

    def start(package):
        python = {"ours": sys.executable, "peer": PEER_PYTHON}[package]
        started.append(Worker(package, python))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture(scope="session")
def worker_of(start_worker):
    """Returns the one process of a package for a role (`client`, `server`, ...)."""
    workers: dict[tuple[str, str], Worker] = {}

    def get(package, role):
        if (package, role) not in workers or not workers[package, role].alive:
            workers[package, role] = start_worker(package)
        return workers[package, role]

    return get


@pytest.fixture
def serve(worker_of):
    """Starts a server of a package, in a process of its own, and returns its address."""
    used = []

    def start(package, *tables, port=None):
        worker = worker_of(package, "server")
        used.append(worker)
        return f"localhost:{worker.call('start_server', tables=list(tables or ({},)), port=port)}"

    yield start
    for worker in used:
        if worker.alive:
            worker.call("stop_server")
