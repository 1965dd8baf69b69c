# SPDX-License-Identifier: Apache-2.0
"""Which old checkpoints go when a new one is there, and what is never touched."""

import pathlib
import shutil

import numpy as np
import pytest

import reverb
from reverb import testing
from support.checkpoints import on_disk


@pytest.mark.parametrize("keep_latest", [1, 2, 5])
def test_the_latest_are_kept(serve, root, insert, names, keep_latest):
    client = serve(root, keep_latest=keep_latest)
    saved = []
    for value in range(7):
        insert(client, value)
        saved.append(pathlib.Path(client.checkpoint()).name)
        assert names(root) == saved[-keep_latest:]
    client.server.stop()
    # Those of a server that has stopped count too.
    client = serve(root, keep_latest=keep_latest)
    saved.append(pathlib.Path(client.checkpoint()).name)
    assert names(root) == saved[-keep_latest:]


def test_one_is_kept_unless_told_otherwise(serve, root, names):
    client = serve(root)
    client.checkpoint()
    path = client.checkpoint()
    assert names(root) == [pathlib.Path(path).name]


def test_nothing_is_deleted_by_starting_or_stopping(serve, root, names):
    client = serve(root, keep_latest=3)
    for _ in range(3):
        client.checkpoint()
    before = names(root)
    client.server.stop()
    for _ in range(2):
        serve(root, keep_latest=1).server.stop()
    assert names(root) == before


def fill_with_foreign_things(root):
    """Everything that somebody may have in the directory where they train."""
    root.mkdir()
    for name in ("0", "notes.txt", "zzz", ".hidden", "2026-01-01T00:00:00+00:00.txt"):
        (root / name).write_text(f"my {name}")
    for name in ("logs", "zzzz", ".git", ".partially-mine", "1999-01-01T00:00:00+00:00"):
        (root / name).mkdir()
        (root / name / "file").write_text(f"in my {name}")
    # Checkpoints of the original, complete and not, and one that ends like ours.
    on_disk.write(root / "2020-01-01T00:00:00+00:00", on_disk.simple([1]))
    on_disk.write(root / "2021-01-01T00:00:00+00:00", on_disk.simple([1]), done=None)
    on_disk.write(root / "2022-01-01T00:00:00+00:00", on_disk.simple([1]), done=b"mine\n")
    (root / "empty").mkdir()
    (root / "link").symlink_to(root.parent)
    (root / "broken link").symlink_to(root / "nowhere")


def contents(root):
    """Names and contents of all files below a directory."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        found[name] = path.read_bytes() if path.is_file() else path.is_symlink()
    return found


def test_what_others_put_there_is_never_touched(serve, root, insert, values):
    fill_with_foreign_things(root)
    before = contents(root)
    client = serve(root)
    assert values(client) == [1]
    for value in (2, 3, 4):
        insert(client, value)
        path = pathlib.Path(client.checkpoint())
    after = contents(root)
    assert {name: after[name] for name in before} == before
    ours = {pathlib.Path(name).parts[0] for name in set(after) - set(before)}
    assert ours == {path.name}
    client.server.stop()
    assert values(serve(root)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "signed"),
    [
        ("2999-01-01T00:00:00+00:00", False),
        ("2999-01-01T00:00:00.5-11:00", False),
        ("2999-12-31T23:59:59.999999999+14:00", False),
        ("2999-12-31T23:59:59.999999999+14:00", True),
    ],
)
def test_what_was_saved_last_is_what_is_loaded(serve, root, insert, values, name, signed):
    """The clock was wrong once."""
    on_disk.write(root / name, on_disk.simple([1]), signed=signed)
    client = serve(root)
    assert values(client) == [1]
    insert(client, 2)
    path = pathlib.Path(client.checkpoint())
    client.server.stop()
    assert path.name > name
    client = serve(root)
    assert values(client) == [1, 2]
    insert(client, 3)
    client.checkpoint()
    client.server.stop()
    assert values(serve(root)) == [1, 2, 3]
    # Only what this package wrote is deleted.
    assert (root / name).exists() == (not signed)


def test_a_copy_under_another_name_stays(serve, root):
    client = serve(root)
    shutil.copytree(client.checkpoint(), root / "0 the best so far")
    for _ in range(3):
        client.checkpoint()
    assert (root / "0 the best so far" / on_disk.DONE).exists()


@pytest.mark.parametrize("name", ["9999", "best", "zzz", "é", "2999-01-01T00:00:00Z"])
def test_a_name_that_sorts_behind_any_time_is_told(serve, root, values, name, capfd):
    """It is what a server loads, as one of dm-reverb would."""
    on_disk.write(root / name, on_disk.simple([1]))
    client = serve(root)
    capfd.readouterr()
    path = client.checkpoint()
    client.server.stop()
    told = str(root / name) in capfd.readouterr().err
    assert told or path > str(root / name)
    assert values(serve(root)) == [1]


def test_left_over_parts_of_dead_processes_vanish(serve, root, names):
    client = serve(root)
    saved = pathlib.Path(client.checkpoint())
    client.server.stop()
    # As if the process had died in the middle of the next one.
    (root / ".partial-of-nobody").mkdir()
    (root / ".partial-of-nobody" / on_disk.ITEMS).write_bytes(b"\x78\x9c")
    client = serve(root)
    path = pathlib.Path(client.checkpoint())
    assert path != saved
    assert names(root) == [path.name]


class TestTwoServersOnOneDirectory:
    def test_each_keeps_its_own_latest(self, serve, root, insert, names):
        clients = [serve(root), serve(root)]
        latest = {}
        for value in range(3):
            for number, client in enumerate(clients):
                insert(client, 10 * value + number)
                latest[number] = pathlib.Path(client.checkpoint())
                assert names(root) == sorted(path.name for path in latest.values())
        for number, path in latest.items():
            stored = on_disk.read(path)
            assert len(stored.items) == 3
            assert {int(stored.columns(item)[0][0]) % 10 for item in stored.items} == {number}
        clients[0].server.stop()
        path = clients[1].checkpoint()
        # Nobody answers for the other one any more.
        assert names(root) == [pathlib.Path(path).name]

    def test_both_saving_at_once(self, serve, root, insert, names, background):
        clients = [serve(root), serve(root)]

        def save(number, client):
            for value in range(20):
                insert(client, value * 10 + number)
                path = client.checkpoint()
                assert len(on_disk.read(path).items) == value + 1
            return pathlib.Path(path).name

        calls = [background(save, number, client) for number, client in enumerate(clients)]
        assert sorted(call.result() for call in calls) == names(root)

    def test_reading_meanwhile_finds_something_whole(self, serve, root, background):
        """A checkpoint that is about to be read may be replaced and deleted before it is opened."""
        client = serve(root, testing.table(max_size=10**6))
        client.insert_batch([np.arange(5000)], {"table": 1.0})
        client.checkpoint()
        call = background(lambda: [client.checkpoint() for _ in range(40)])
        reads = 0
        while call.running or reads == 0:
            checkpoint = reverb.checkpointers.read(root)
            assert checkpoint.statistics()["table"].num_items == 5000
            reads += 1
        call.result()
