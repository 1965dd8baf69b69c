# SPDX-License-Identifier: Apache-2.0
"""Checkpoints made by hand, servers that load them, and what such a server then holds."""

import contextlib
import pathlib

import pytest

import reverb
from reverb import testing
from reverb.errors import InternalError, ReverbError

_HERE = pathlib.Path(__file__).parent


@pytest.fixture
def sample():
    """A checkpoint that dm-reverb 0.14.0 wrote."""
    return _HERE / "sample" / "dm_reverb_0.14.0"


@pytest.fixture
def serve():
    """Starts servers over a root; they stop with the test: `client = serve(root, table, ...)`.

    Takes the options of a checkpointer and of a server together. The client has an attribute
    `server`.
    """
    with contextlib.ExitStack() as stack:

        def serve(root, *tables, **options):
            names = (
                "group",
                "fallback_checkpoint_path",
                "keep_latest",
                "restore_settings",
                "name",
                "load",
            )
            of_checkpointer = {name: options.pop(name) for name in names if name in options}
            checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root), **of_checkpointer)
            server = reverb.Server(
                tables or [testing.table()],
                checkpointer=checkpointer,
                **({"host": "127.0.0.1"} | options),
            )
            stack.enter_context(server)
            client = reverb.Client(f"127.0.0.1:{server.port}", connect_timeout_s=20)
            client.server = server
            return client

        yield serve


@pytest.fixture
def try_to_serve(serve):
    """The same, but `None` if the server refuses to start, with an error that names what it found.

    Takes the checkpoint, not its root.
    """

    def try_to_serve(path, *tables, **options):
        refused = None
        try:
            return serve(path.parent, *tables, **options)
        except ReverbError as error:
            refused = error
        assert not isinstance(refused, InternalError)
        assert str(path) in str(refused)
        return None

    return try_to_serve


@pytest.fixture
def names():
    """`names(root)`: what is in a directory, in order."""
    return lambda root: sorted(path.name for path in pathlib.Path(root).iterdir())


@pytest.fixture
def state():
    """`state(client, table="table")`: key, priority, samples and columns of every item."""

    def state(client, table="table"):
        return [
            (
                sample.info.key,
                sample.info.priority,
                sample.info.times_sampled,
                [(column.dtype, column.tolist()) for column in sample.data],
            )
            for sample in client.scan(table)
        ]

    return state


@pytest.fixture
def values():
    """`values(client, table="table")`: the first number of every item, oldest first."""

    def values(client, table="table"):
        return [int(sample.data[0].flat[0]) for sample in client.scan(table)]

    return values


@pytest.fixture
def counters():
    """`counters(client)`: inserts, samples, unique samples, episodes, deleted episodes."""

    def counters(client, table="table"):
        info = client.server_info()[table]
        limiter = info.rate_limiter_info
        return (
            limiter.insert_stats.completed,
            limiter.sample_stats.completed,
            info.num_unique_samples,
            info.num_episodes,
            info.num_deleted_episodes,
        )

    return counters


@pytest.fixture
def insert():
    """`insert(client, *values, table="table", priority=1.0)`: an item a value, an episode each."""

    def insert(client, *values, table="table", priority=1.0):
        for value in values:
            client.insert([value], {table: priority})

    return insert
