# SPDX-License-Identifier: Apache-2.0
"""What a server has after it was stopped or killed, and starts again with its store."""

import contextlib
import pathlib
import re

import numpy as np
import pytest

import reverb
from reverb.errors import FailedPreconditionError, InvalidArgumentError
from support.checkpoints import tfrecords
from support.programs import Program
from support.waiting import wait_until

checkpointers = reverb.checkpointers


def table(name="t", **options):
    limiter = reverb.rate_limiters.MinSize(1)
    settings = {"max_size": 1000} | options
    return reverb.Table(
        name,
        reverb.selectors.Prioritized(0.8),
        reverb.selectors.Fifo(),
        rate_limiter=limiter,
        **settings,
    )


def serve(directory, *tables, checkpoints=None, restore_settings=False, **options):
    store = reverb.Store(directory, sync_interval_s=0.1, restore_settings=restore_settings)
    if checkpoints is not None:
        options["checkpointer"] = checkpointers.DefaultCheckpointer(str(checkpoints))
    return reverb.Server(tables or [table()], store=store, **options)


def client_of(server):
    return reverb.Client(f"localhost:{server.port}")


def fill(client, numbers, name="t", **options):
    """Inserts small items and large ones."""
    numbers = np.asarray(numbers)
    rows = {"large": np.repeat(numbers[:, None], 3000, axis=1), "number": numbers}
    return client.insert_batch(rows, {name: numbers + 1.0}, **options)[name]


def contents(client, name="t"):
    """Key, priority and time of each item, by its number."""
    found = {}
    for inserted_at, item in client.scan(name, with_inserted_at=True):
        large, number = (np.asarray(data).reshape(-1) for data in item.data)
        assert (large == number[0]).all()
        info = item.info
        found[int(number[0])] = (info.key, info.priority, inserted_at)
    return found


def taken_by(directory):
    """Bytes of the files of a store, of which some may be deleted meanwhile."""
    files = (path.stat() for path in directory.iterdir())
    with contextlib.suppress(FileNotFoundError):
        return sum(file.st_size for file in files)
    return taken_by(directory)


def test_a_stop_loses_nothing(tmp_path):
    with serve(tmp_path) as server:
        client = client_of(server)
        keys = fill(client, range(100))
        client.mutate_priorities("t", {int(keys[3]): 50.0}, deletes=[int(keys[5])])
        before = contents(client)
        info = client.server_info()["t"]
    with serve(tmp_path) as server:
        client = client_of(server)
        assert contents(client) == before
        assert list(contents(client)) == list(before), "oldest first"
        assert before[3][1] == 50.0
        assert 5 not in before
        again = client.server_info()["t"]
        assert again.rate_limiter_info.insert_stats == info.rate_limiter_info.insert_stats
        fill(client, range(100, 110))
    with serve(tmp_path) as server:
        assert len(contents(client_of(server))) == 109


def test_replaced_items_come_back_with_their_new_data(tmp_path):
    """Items of an earlier commit and of the same one, once and twice, in their order."""
    with serve(tmp_path) as server:
        client = client_of(server)
        fill(client, range(10), keys=range(10))
        client.sync()
        fill(client, [102, 103, 120], keys=[2, 3, 20], replace=True)
        fill(client, [203], keys=[3], replace=True)
        client.sync()
        fill(client, [304, 321], keys=[4, 21], replace=True)
        fill(client, [404, 421], keys=[4, 21], replace=True)
        client.update_priorities("t", [2, 4], [70.0, 71.0])
        before = contents(client)
        info = client.server_info()["t"]
    assert [number for number in before if number > 10] == [102, 120, 203, 404, 421]
    with serve(tmp_path) as server:
        client = client_of(server)
        assert contents(client) == before
        assert list(contents(client)) == list(before), "oldest first"
        assert before[404][:2] == (4, 71.0)
        again = client.server_info()["t"]
        assert again.rate_limiter_info.insert_stats == info.rate_limiter_info.insert_stats
        fill(client, [504], keys=[4], replace=True)
        assert len(contents(client)) == len(before)


def test_tables_are_found_by_their_names(tmp_path):
    with serve(tmp_path, table("a"), table("b")) as server:
        fill(client_of(server), range(3), "a")
        fill(client_of(server), range(5), "b")
    with serve(tmp_path, table("c"), table("b"), table("a")) as server:
        client = client_of(server)
        assert [len(contents(client, name)) for name in "abc"] == [3, 5, 0]
        fill(client, range(7), "c")
    with serve(tmp_path, table("a"), table("b"), table("c")) as server:
        assert [len(contents(client_of(server), name)) for name in "abc"] == [3, 5, 7]
    text = (
        "has a table c, and the server has none of that name; its tables are: a, b. Add the table"
    )
    with pytest.raises(InvalidArgumentError, match=text):
        serve(tmp_path, table("a"), table("b"))


def test_settings_of_the_code_win_unless_they_are_restored(tmp_path):
    with serve(tmp_path, table(max_size=50)) as server:
        fill(client_of(server), range(50))
        client_of(server).configure_table("t", max_size=40)
    with serve(tmp_path, table(max_size=60), restore_settings=True) as server:
        assert client_of(server).server_info()["t"].max_size == 40
    with serve(tmp_path, table(max_size=20)) as server:
        assert sorted(contents(client_of(server))) == list(range(30, 50))


def test_a_reset_and_a_full_table_come_back_as_they_were(tmp_path):
    with serve(tmp_path, table(max_size=10)) as server:
        client = client_of(server)
        fill(client, range(30))
        client.reset("t")
        fill(client, range(30, 55))
        before = contents(client)
    with serve(tmp_path, table(max_size=10)) as server:
        assert contents(client_of(server)) == before
        assert sorted(before) == list(range(45, 55))


def test_numbers_of_samples_are_exact_where_they_count(tmp_path):
    def tables():
        return [table("thrice", max_times_sampled=3), table("often")]

    with serve(tmp_path, *tables()) as server:
        client = client_of(server)
        fill(client, range(1), "thrice")
        list(client.sample("thrice", 2))
    with serve(tmp_path, *tables()) as server:
        client = client_of(server)
        (sample,) = client.sample("thrice", 1)
        assert sample[0].info.times_sampled == 3
        wait_until(lambda: client.server_info()["thrice"].current_size == 0)


def test_a_loaded_checkpoint_is_kept_before_the_port_opens(tmp_path):
    root, store = tmp_path / "root", tmp_path / "store"
    checkpointer = checkpointers.DefaultCheckpointer(str(root))
    with reverb.Server([table()], checkpointer=checkpointer) as server:
        fill(client_of(server), range(20))
        before = contents(client_of(server))
        client_of(server).checkpoint()
    source = """
        import sys
        import reverb
        from operations.test_journal import serve
        server = serve(sys.argv[1], checkpoints=sys.argv[2])
        print(server.port, flush=True)
        sys.stdin.readline()
    """
    with Program(source, store, root) as program:
        program.line()
        program.kill()
    (checkpoint,) = (path for path in root.iterdir() if path.is_dir())
    checkpoint.rename(tmp_path / "gone")
    with serve(store, checkpoints=root) as server:
        assert contents(client_of(server)) == before


def test_a_store_wins_over_checkpoints_of_its_server(tmp_path):
    root, store = tmp_path / "root", tmp_path / "store"
    with serve(store, checkpoints=root) as server:
        client = client_of(server)
        fill(client, range(20))
        client.checkpoint()
        fill(client, range(20, 25))
    with serve(store, checkpoints=root) as server:
        assert len(contents(client_of(server))) == 25
        path = client_of(server).checkpoint()
    with serve(store, checkpoints=root) as server:
        assert len(contents(client_of(server))) == 25, "the checkpoint is of this store"
    chosen = checkpointers.DefaultCheckpointer(str(root), load=path)
    with pytest.raises(FailedPreconditionError, match="is named for loading, and"):
        reverb.Server([table()], store=reverb.Store(store), checkpointer=chosen)


def test_a_newer_checkpoint_of_another_server_wins(tmp_path):
    root, store = tmp_path / "root", tmp_path / "store"
    with serve(store, checkpoints=root) as server:
        fill(client_of(server), range(20))
        client_of(server).checkpoint()
    checkpointer = checkpointers.DefaultCheckpointer(str(root))
    with reverb.Server([table()], checkpointer=checkpointer) as elsewhere:
        fill(client_of(elsewhere), range(20, 30))
        client_of(elsewhere).checkpoint()
    with serve(store, checkpoints=root) as server:
        assert sorted(contents(client_of(server))) == list(range(30))
    (aside,) = pathlib.Path(store).glob("stale-*")
    with serve(aside) as server:
        assert sorted(contents(client_of(server))) == list(range(20)), "nothing was deleted"
    with serve(store, checkpoints=root) as server:
        assert sorted(contents(client_of(server))) == list(range(30)), "the store is newer now"


HOUR_S = 3600


@pytest.mark.parametrize("saver", ["its server", "another", "another, with a store", "fallback"])
@pytest.mark.parametrize("lead_s", [-HOUR_S, HOUR_S])
@pytest.mark.parametrize("is_older", [True, False])
def test_the_newer_of_store_and_checkpoint_wins(tmp_path, capfd, saver, lead_s, is_older):
    """By the clocks of their hosts, of which that of the other server goes wrong by an hour."""
    root, store = tmp_path / "root", tmp_path / "store"
    other_store = reverb.Store(tmp_path / "other") if "with" in saver else None
    with serve(store) as server:
        fill(client_of(server), range(3))
    if saver == "its server":
        with serve(store, checkpoints=root) as server:
            client_of(server).checkpoint()
    else:
        checkpointer = checkpointers.DefaultCheckpointer(str(root))
        with reverb.Server([table()], checkpointer=checkpointer, store=other_store) as other:
            fill(client_of(other), range(5))
            client_of(other).checkpoint()
    if is_older:
        with serve(store) as server:
            fill(client_of(server), range(3, 4))
    (done,) = root.glob("*/DONE")
    head, _, _ = done.read_text().rpartition("crc32c=")
    at_ns = int(re.search(r"taken_at_ns=(\d+)", head)[1])
    head = head.replace(f"{at_ns}", f"{at_ns + lead_s * 10**9}")
    done.write_text(f"{head}crc32c={tfrecords.crc32c(head.encode()):08x}\n")
    expected = 4 if is_older else 3
    if saver != "its server" and lead_s > 0:
        expected = 5
    checkpointer = checkpointers.DefaultCheckpointer(str(root))
    if saver == "fallback":
        fallback = str(done.parent)
        checkpointer = checkpointers.DefaultCheckpointer(
            str(tmp_path / "empty"), fallback_checkpoint_path=fallback
        )
    with serve(store, checkpointer=checkpointer) as server:
        assert len(contents(client_of(server))) == expected
        assert (server.status().checkpoints.restored_from is None) == (expected < 5)
    told = "another server saved checkpoint" in capfd.readouterr().err
    assert told == (expected == 5)


def test_a_directory_is_a_journal_or_none(tmp_path):
    with serve(tmp_path) as server:
        fill(client_of(server), range(3))
    with pytest.raises(
        FailedPreconditionError, match="is a journal: open it without journal=False"
    ):
        reverb.Server([table()], max_bytes="64MiB", store=reverb.Store(tmp_path, journal=False))
    with serve(tmp_path) as server, pytest.raises(FailedPreconditionError, match="is in use by"):
        serve(tmp_path)
    with serve(tmp_path) as server:
        assert len(contents(client_of(server))) == 3


def test_a_small_budget_is_kept_and_nothing_waits_for_ever(tmp_path):
    """The log of all that comes and goes is several times as large as what the store may take."""
    small = np.random.default_rng(0).random((4000, 50))
    store = reverb.Store(tmp_path, max_bytes="64MiB", sync_interval_s=0.1)
    with reverb.Server([table(max_size=10_000)], store=store) as server:
        client = client_of(server)
        for batch in range(100):
            numbers = np.arange(4000 * batch, 4000 * (batch + 1))
            client.insert_batch({"small": small, "number": numbers}, {"t": 1.0})
            client.sync()  # Or what comes and goes would be in no commit.
        assert client.server_info()["t"].current_size == 10_000
        taken = taken_by(tmp_path)
        written = client.status().store.written_log_bytes
    assert written > 128 << 20
    assert taken < 64 << 20
    with serve(tmp_path, table(max_size=10_000)) as server:
        items = client_of(server).scan("t")
        assert sorted(int(item.data[0].item()) for item in items) == list(range(390_000, 400_000))


def test_items_leave_a_store_that_is_full_of_them(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (100, 20_000), np.uint8)
    store = reverb.Store(tmp_path, max_bytes="64MiB", sync_interval_s=0.1)
    with reverb.Server([table(max_size=10**6)], store=store) as server:
        client = client_of(server)
        for batch in range(80):
            client.insert_batch(
                {"noise": noise, "number": np.arange(100) + 100 * batch}, {"t": 1.0}
            )
        # What was inserted before a commit said that the store is full is written nevertheless.
        wait_until(lambda: taken_by(tmp_path) < 64 << 20)
        numbers = sorted(int(item.data[1].item()) for item in client.scan("t"))
        assert numbers == list(range(numbers[0], 8000))
