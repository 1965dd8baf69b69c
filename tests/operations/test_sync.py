# SPDX-License-Identifier: Apache-2.0
"""`sync`: what was confirmed before it survives a kill, with the note of the program."""

import asyncio
import contextlib
import signal

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from support.hosts import HOSTS
from support.programs import Program
from support.reverb_server import running
from support.waiting import Background, wait_until

# A commit each minute: what is on the disk is there because of `sync`.
SOURCE = """
    import sys
    import reverb
    from reverb import testing
    server = reverb.Server([testing.table()], store=reverb.Store(sys.argv[1], sync_interval_s=60))
    print(server.port, flush=True)
    sys.stdin.readline()
"""


def sync(address, kind, note=b""):
    """Syncs as the client of this kind."""
    if kind == "awaited":

        async def awaited():
            async with reverb.aio.Client(address) as client:
                return await client.sync(note)

        return asyncio.run(awaited())
    return reverb.Client(address).sync(note=note)


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_what_was_confirmed_before_it_survives_a_kill(tmp_path, kind):
    with Program(SOURCE, tmp_path) as program:
        address = f"localhost:{program.line()}"
        client = reverb.Client(address)
        for step in range(3):
            client.insert_batch(np.arange(10) + 10 * step, {"table": 1.0})
            result = sync(address, kind, f"step {step}".encode())
        client.insert_batch(np.arange(30, 40), {"table": 1.0})
        store = client.status().store
        assert (result.note, result.shards) == (b"step 2", ())
        assert store.commit == result.commit
        assert store.synced_at == pytest.approx(result.at)
        program.kill()
    with Program(SOURCE, tmp_path) as program:
        client = reverb.Client(f"localhost:{program.line()}")
        numbers = sorted(int(np.asarray(item.data[0]).item()) for item in client.scan("table"))
        recovered = client.status().store.recovered
        assert numbers == list(range(30))
        assert recovered.items == 30
        assert recovered.note == b"step 2"
        assert [note.note for note in recovered.notes] == [b"step 0", b"step 1", b"step 2"]
        assert recovered.at == pytest.approx(result.at)
        assert recovered.commit == result.commit


def test_calls_of_the_process_and_of_many_callers(tmp_path):
    store = reverb.Store(tmp_path, sync_interval_s=60)
    with reverb.Server([testing.table()], store=store) as server:
        client = server.localhost_client()
        client.insert([1.0], {"table": 1.0})
        first = server.sync(b"here")
        others = [Background(client.sync, b"%d" % at) for at in range(8)]
        commits = [other.result().commit for other in others]
        assert min(commits) > first.commit
        assert server.status().store.commit == max(commits)
        assert server.sync(timeout_ms=30_000).at >= first.at


def test_a_timeout_ends_the_wait_and_not_the_commit(tmp_path):
    def start():
        store = reverb.Store(tmp_path, sync_interval_s=60)
        return reverb.Server([testing.table()], store=store, host="127.0.0.1")

    def times_out():
        # The next commit is 20 ms after this one, unless this thread is paused for as long.
        server.sync()
        try:
            remote.sync(b"step 7", timeout_ms=0)
        except DeadlineExceededError as error:
            return str(error).startswith(f"The journal in {tmp_path} is ")
        return False

    with start() as server:
        remote = reverb.Client(f"127.1:{server.port}")
        wait_until(times_out)
    with start() as server:
        assert server.status().store.recovered.note == b"step 7"


def test_a_group_syncs_all_its_shards(tmp_path):
    with contextlib.ExitStack() as stack:
        stores = [reverb.Store(tmp_path / name) for name in "ab"]
        servers = [
            stack.enter_context(reverb.Server([testing.table()], store=store, host="127.0.0.1"))
            for store in stores
        ]
        for number, server in enumerate(servers):
            for _ in range(number):
                server.sync(b"apart")
        shards = ",".join(f"127.1:{server.port}" for server in servers)
        result = reverb.Client(f"shards:///{shards}").sync(b"step 7")
        assert (result.commit, result.note) == (0, b"step 7")
        commits = [server.status().store.commit for server in servers]
        assert [shard.commit for shard in result.shards] == commits
        assert result.at == min(shard.at for shard in result.shards)


def test_a_group_without_a_shard_syncs_the_others_and_names_it(tmp_path):
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                reverb.Server(
                    [testing.table()], store=reverb.Store(tmp_path / name), host="127.0.0.1"
                )
            )
            for name in "abc"
        ]
        addresses = [f"127.1:{server.port}" for server in servers]
        client = reverb.Client(f"shards:///{','.join(addresses)}")
        client.sync()
        servers[1].stop()
        before = [server.status().store.commit for server in servers[::2]]
        with pytest.raises(UnavailableError, match=f"shard 1.*{addresses[1]}"):
            client.sync(b"two of three")
        assert [server.status().store.commit for server in servers[::2]] > before


def test_a_frozen_server_does_not_outlast_the_time_limit(tmp_path):
    with running(f"--store={tmp_path}") as (program, client):
        client.sync()
        program.signal(signal.SIGSTOP)
        # Without it the connection is given up after 15 s, as unavailable.
        with pytest.raises(DeadlineExceededError, match="sync did not finish within"):
            client.sync(timeout_ms=200)
        program.signal(signal.SIGCONT)


def test_it_ends_when_the_server_stops(tmp_path):
    def sync_until_the_end(client):
        try:
            while True:
                client.sync(b"again")
        except UnavailableError:
            return client

    store = reverb.Store(tmp_path, sync_interval_s=60)
    with reverb.Server([testing.table()], store=store, host="127.0.0.1") as server:
        clients = [reverb.Client(f"{host}:{server.port}") for host in HOSTS.values()]
        first = server.sync().commit
        calls = [Background(sync_until_the_end, client) for client in clients]
        wait_until(lambda: server.status().store.commit > first + 1)
        server.stop()
        for call in calls:
            with pytest.raises(UnavailableError):
                call.result().sync()
        with pytest.raises(UnavailableError, match="The server is stopping"):
            server.sync()


def test_what_it_refuses(tmp_path):
    with testing.server() as client, pytest.raises(FailedPreconditionError) as error:
        client.sync()
    assert str(error.value) == "This server has no journal: start it with Store(...)."
    with reverb.Server([testing.table()], store=reverb.Store(tmp_path)) as server:
        with pytest.raises(
            InvalidArgumentError, match="note must have at most 65,536 bytes, got 7"
        ):
            server.sync(b"n" * 70_000)
        with pytest.raises(TypeError, match="note must be bytes, got str"):
            server.sync("step 3")
        with pytest.raises(InvalidArgumentError, match="timeout_ms"):
            server.sync(timeout_ms=-1)
