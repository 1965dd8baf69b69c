# SPDX-License-Identifier: Apache-2.0
"""Episodes to play, and what tables hold after them."""

import importlib.util

import dm_env
import numpy as np
import pytest

import reverb
from reverb import testing

TABLE = "priority_table"


@pytest.fixture
def table():
    """The table that adders write to: hands its items out in order, once."""
    return testing.table(TABLE, max_times_sampled=1)


@pytest.fixture
def client(table):
    with testing.server([table]) as client:
        yield client


def _episode(num_steps, first=0, *, reward=None, discount=None, extras=None, observation=None):
    """The first time step, and `(action, time step, extras)` of each step.

    By default observations count from `first`, actions from 0, rewards from 1, and the last step's
    discount is 0. The other arguments are functions of the step's or the observation's number.
    """
    observation = observation or np.float32
    reward = reward or (lambda i: np.float32(i + 1))
    discount = discount or (lambda i: np.float32(i < num_steps - 1))
    extras = extras or (lambda i: ())
    kinds = [dm_env.StepType.MID] * (num_steps - 1) + [dm_env.StepType.LAST]
    steps = [
        (
            np.int32(i),
            dm_env.TimeStep(kind, reward(i), discount(i), observation(first + i + 1)),
            extras(i),
        )
        for i, kind in enumerate(kinds)
    ]
    return dm_env.restart(observation(first)), steps


@pytest.fixture
def episode():
    return _episode


@pytest.fixture
def play():
    """Plays episodes: `play(adder, episode(3), episode(2))`."""

    def play(adder, *episodes):
        for first, steps in episodes:
            adder.add_first(first)
            for action, timestep, extras in steps:
                adder.add(action, timestep, extras)

    return play


@pytest.fixture
def items(client, until):
    """Takes all items out of a table: their columns, as lists of arrays."""

    def items(count, table=TABLE):
        until(lambda: client.server_info()[table].current_size >= count)
        assert client.server_info()[table].current_size == count
        if not count:
            return []
        samples = client.sample(table, count, emit_timesteps=False)
        return [sample.data for sample in samples]

    return items


@pytest.fixture
def values(items):
    """The same as nested lists of numbers."""
    return lambda *args, **kwargs: [
        [np.asarray(column).tolist() for column in item] for item in items(*args, **kwargs)
    ]


@pytest.fixture
def serve_tables():
    """Runs a server for the length of the test: `client = serve_tables(table, ...)`."""
    servers = []

    def serve(*tables):
        servers.append(reverb.Server(list(tables), host="127.0.0.1"))
        return reverb.Client(f"127.0.0.1:{servers[-1].port}", connect_timeout_s=20.0)

    yield serve
    for server in servers:
        server.stop()


class _SkippedModule(pytest.Module):
    def collect(self):
        pytest.skip(_why_not_acme(), allow_module_level=True)


def _why_not_acme():
    """Why the tests that compare with Acme cannot run here; empty if they can."""
    for module in ("acme", "launchpad", "tensorflow", "jax"):
        if importlib.util.find_spec(module) is None:
            return f"compares with Acme, and {module} is not installed; `make test-integrations`"
    return ""


def pytest_pycollect_makemodule(module_path, parent):
    if module_path.name.startswith("test_against_acme") and _why_not_acme():
        return _SkippedModule.from_parent(parent, path=module_path)
    return None
