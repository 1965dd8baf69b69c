# SPDX-License-Identifier: Apache-2.0
"""Stores that are too small, and whose files somebody damages, deletes or moves."""

import shutil

import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb.errors import DataLossError, DeadlineExceededError, FailedPreconditionError
from support.programs import Program
from support.waiting import wait_until


def serve(directory, **options):
    table = testing.table("t", max_size=10**6)
    return reverb.Server([table], store=reverb.Store(directory, sync_interval_s=0.1, **options))


def fill(client, first, end, size=300):
    noise = np.random.default_rng(first).integers(0, 256, (end - first, size), np.uint8)
    client.insert_batch({"x": noise}, {"t": 1.0})


def size_of(server):
    return server.localhost_client().server_info()["t"].current_size


def newest_log(directory):
    return max(directory.glob("log-*.seg"))


def test_an_idle_server_keeps_its_items(tmp_path):
    """A base, and what it was made of, take most of what the store may have."""
    with serve(tmp_path, max_bytes="64MiB") as server:
        client = server.localhost_client()
        for first in range(0, 60_000, 2000):
            fill(client, first, first + 2000)
        client.sync()
        wait_until(lambda: server.status().store.last_base_at is not None)
        wait_until(lambda: server.status().store.state == "ok")
        client.sync(b"one more commit")
        assert size_of(server) == 60_000
    with serve(tmp_path, max_bytes="64MiB") as server:
        assert size_of(server) == 60_000


def test_items_leave_a_store_that_is_too_small_until_it_is_not(tmp_path, capfd):
    with serve(tmp_path) as server:
        for first in range(0, 1000, 100):
            fill(server.localhost_client(), first, first + 100, 90_000)
    with serve(tmp_path, max_bytes="64MiB") as server:
        wait_until(lambda: size_of(server) < 1000 and server.status().store.state == "ok")
        kept = size_of(server)
        assert kept > 400, "as many as there is room for, but a few"
        server.sync(b"one more commit")
        assert size_of(server) == kept
    assert 'tables with when_full="remove" give up items' in capfd.readouterr().err


def test_starts_leave_nothing_behind(tmp_path):
    with serve(tmp_path) as server:
        fill(server.localhost_client(), 0, 20_000)
    source = """
        import sys
        import reverb
        from reverb import testing
        tables = [testing.table("t", max_size=10**6)]
        server = reverb.Server(tables, store=reverb.Store(sys.argv[1]))
        print("started", flush=True)
        sys.stdin.readline()
    """
    for _ in range(4):
        with Program(source, tmp_path) as program:
            program.line()
            program.kill()
    taken = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert taken < 4 * 20_000 * 420, "the last commit, in two logs and a base"


@pytest.mark.parametrize("damage", ["cut", "zeros", "deleted"])
def test_a_damaged_newest_log_costs_nothing_that_is_there_twice(tmp_path, damage):
    for first, note in ((0, b"a"), (100, b"b"), (100, b"")):
        with serve(tmp_path) as server:
            if note:
                fill(server.localhost_client(), first, first + 100)
                server.sync(note)
    newest = newest_log(tmp_path)
    if damage == "cut":
        with newest.open("r+b") as file:
            file.truncate(4096)
    elif damage == "zeros":
        newest.write_bytes(bytes(newest.stat().st_size))
    else:
        newest.unlink()
    with pytest.raises(DataLossError, match=newest.name):
        serve(tmp_path)
    assert command.main(["store", "repair", str(tmp_path)]) in (0, 3)
    with serve(tmp_path) as server:
        assert (size_of(server), server.status().store.recovered.note) == (200, b"b")


def test_a_server_that_has_stopped_leaves_no_torn_tail(tmp_path):
    with serve(tmp_path) as server:
        for first in range(0, 250, 50):
            fill(server.localhost_client(), first, first + 50)
            server.sync()
    whole = newest_log(tmp_path).read_bytes()
    newest_log(tmp_path).write_bytes(whole[:-5000] + b"!" + whole[-4999:])
    with pytest.raises(DataLossError, match=r"is damaged at \d+: it was on disk"):
        serve(tmp_path)


def test_a_deleted_lock_file_lets_no_other_server_in(tmp_path):
    with serve(tmp_path) as server:
        fill(server.localhost_client(), 0, 100)
        server.sync()
        (tmp_path / "LOCK").unlink()
        fill(server.localhost_client(), 100, 200)
        server.sync()
        with pytest.raises(FailedPreconditionError, match="is in use by this process"):
            serve(tmp_path)
    with serve(tmp_path) as server:
        assert size_of(server) == 200


@pytest.mark.parametrize("what", ["moved", "deleted", "taken"])
def test_sync_fails_when_the_directory_is_not_ours_any_more(tmp_path, what):
    store = tmp_path / "store"
    server = serve(store)
    fill(server.localhost_client(), 0, 100)
    server.sync()
    if what == "taken":
        (store / "LOCK").unlink()
        with serve(store) as other:
            assert size_of(other) == 100
    elif what == "moved":
        store.rename(tmp_path / "away")
    else:
        shutil.rmtree(store)
    fill(server.localhost_client(), 100, 110)
    with pytest.raises(DeadlineExceededError):
        server.sync(timeout_ms=200)
    assert server.status().store.state in ("failing", "behind")
    assert str(store) in server.status().store.error
    with pytest.raises(DataLossError, match="is lost"):
        server.stop()


def test_files_of_others_stay(tmp_path):
    others = [tmp_path / "data-0000000001.seg", tmp_path / "data-0000000002.seg"]
    for path, content in zip(others, (b"not ours", b"x" * 5000), strict=True):
        path.write_bytes(content)
    with serve(tmp_path) as server:
        fill(server.localhost_client(), 0, 10)
    assert [path.read_bytes() for path in others] == [b"not ours", b"x" * 5000]
