# SPDX-License-Identifier: Apache-2.0
"""`load`: a checkpoint that is chosen is loaded, and no other; saves leave it alone."""

import pathlib
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import testing
from reverb.checkpointers import DefaultCheckpointer
from reverb.errors import FailedPreconditionError, InvalidArgumentError
from support.checkpoints import on_disk


@pytest.fixture
def saved(serve, root, insert):
    """`saved(number)`: paths of checkpoints of one more item each; the server has stopped."""

    def saved(number, **options):
        client = serve(root, keep_latest=number, **options)
        paths = []
        for value in range(number):
            insert(client, value)
            paths.append(client.checkpoint())
        client.server.stop()
        return paths

    return saved


def refused(serve, root, path, **options):
    with pytest.raises(FailedPreconditionError) as caught:
        serve(root, load=path, **options)
    return str(caught.value)


def test_an_older_one_is_loaded_and_told(serve, root, saved, values):
    older, _ = saved(2)
    client = serve(root, load=older)
    assert values(client) == [0]
    assert client.checkpoint_status().restored_from == older


def test_a_save_keeps_it_and_does_not_count_it(serve, root, saved, insert, values, names):
    older, newer = saved(2)
    client = serve(root, load=older, keep_latest=2)
    insert(client, 7)
    own = [client.checkpoint() for _ in range(2)]
    assert names(root) == [pathlib.Path(path).name for path in (older, *own)]
    assert newer not in own
    client.server.stop()
    # The next start without it goes on from the last save, and then it is like any other.
    client = serve(root, keep_latest=2)
    assert values(client) == [0, 7]
    client.checkpoint()
    assert not pathlib.Path(older).exists()


def test_one_of_another_name_is_loaded(serve, root, saved, values, insert):
    (path,) = saved(1, name="a")
    client = serve(root, name="b", load=path)
    assert values(client) == [0]
    client.checkpoint()
    assert pathlib.Path(path).exists()


def test_one_of_dm_reverb_is_loaded(serve, root, sample):
    tables = [testing.table(name) for name in ("fifo", "empty", "prio")]
    client = serve(root, *tables, load=sample, restore_settings=True)
    assert client.checkpoint_status().restored_from == str(sample)


PLACES = ["/", "/.", "/../{name}", "link"]


@pytest.mark.parametrize("place", PLACES)
def test_other_paths_of_it_keep_it_too(serve, root, saved, values, tmp_path, place):
    older, _ = saved(2)
    if place == "link":
        (tmp_path / "link").symlink_to(root)
        path = tmp_path / "link" / pathlib.Path(older).name
    else:
        path = older + place.format(name=pathlib.Path(older).name)
    client = serve(root, load=path)
    assert values(client) == [0]
    for _ in range(3):
        client.checkpoint()
    assert pathlib.Path(older, "DONE").exists()


def test_a_relative_path_is_that_of_when_it_was_given(root, saved, monkeypatch, tmp_path):
    older, _ = saved(2)
    monkeypatch.chdir(root)
    checkpointer = DefaultCheckpointer(str(root), load=pathlib.Path(older).name)
    monkeypatch.chdir(tmp_path)
    assert checkpointer.load == older
    with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
        assert server.localhost_client().checkpoint_status().restored_from == older


class TestAnotherDirectory:
    def test_it_is_read_and_left_alone(self, serve, root, tmp_path, saved, values, insert):
        path, _ = saved(2)
        before = on_disk.read(pathlib.Path(path))
        client = serve(tmp_path / "other", load=path)
        insert(client, 9)
        assert client.checkpoint().startswith(str(tmp_path / "other"))
        assert values(client) == [0, 9]
        assert on_disk.read(pathlib.Path(path)) == before

    def test_its_server_may_run(self, serve, root, tmp_path, values, insert):
        running = serve(root)
        insert(running, 3)
        path = running.checkpoint()
        assert values(serve(tmp_path / "other", load=path)) == [3]

    def test_the_latest_of_the_own_one_is_not_loaded(self, serve, root, tmp_path, saved, values):
        saved(2)
        path = on_disk.write(tmp_path / "moved", on_disk.simple([7]))
        assert values(serve(root, load=path)) == [7]


class TestRefused:
    def test_gone_tells_what_is_there(self, serve, root, saved, names):
        older, _, _ = saved(3)
        shutil.rmtree(older)
        told = refused(serve, root, older)
        there = ", ".join(names(root))
        assert f"There is no checkpoint {older} to load: it is gone. " in told
        assert f"The directory {root} has the checkpoints {there}. Choose another one" in told

    def test_only_the_last_of_many_are_listed(self, serve, root):
        for number in range(10, 25):
            on_disk.write(root / str(number), on_disk.simple([1]))
        told = refused(serve, root, root / "7")
        assert "checkpoints 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, and 5 before these. " in told

    def test_a_directory_of_checkpoints_is_none(self, serve, root, saved):
        (path,) = saved(1)
        told = refused(serve, root, root)
        assert (
            f"no checkpoint {root} to load: it has no file DONE. The directory {root} has" in told
        )
        assert pathlib.Path(path).name in told

    def test_an_incomplete_one(self, serve, root):
        path = on_disk.write(root / "1", on_disk.simple([1]), done=None)
        told = refused(serve, root, path)
        assert f"it has no file DONE. The directory {root} has no checkpoint. " in told

    def test_nothing_at_all(self, serve, root, tmp_path):
        told = refused(serve, root, tmp_path / "a" / "b")
        assert f"There is no directory {tmp_path / 'a'}." in told

    def test_one_that_another_server_uses(self, serve, root, insert):
        running = serve(root, name="a")
        insert(running, 1)
        path = running.checkpoint()
        told = refused(serve, root, path, name="b")
        assert f"Checkpoint {path} belongs to another server" in told

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"load": ""}, "load must be the path of a checkpoint, got ''"),
            (
                {"load": "/a", "fallback_checkpoint_path": "/b"},
                "give only one of load and fallback_checkpoint_path, got load='/a' and "
                "fallback_checkpoint_path='/b': with load, no other checkpoint is loaded",
            ),
        ],
    )
    def test_arguments(self, options, text):
        with pytest.raises(InvalidArgumentError, match=re.escape(text)):
            DefaultCheckpointer("/c", **options)


@settings(max_examples=15)
@given(st.data())
def test_random_lives(tmp_path_factory, data):
    """Model: which checkpoints there are, and how many items each has."""
    root = tmp_path_factory.mktemp("lives")
    known: dict[str, int] = {}
    for _ in range(data.draw(st.integers(1, 5), "lives")):
        load = data.draw(st.none() | st.sampled_from(sorted(known)) if known else st.none(), "load")
        keep = data.draw(st.integers(1, 3), "keep")
        checkpointer = DefaultCheckpointer(root, keep_latest=keep, load=load)
        with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
            client = server.localhost_client()
            items = known[load or max(known)] if known else 0
            assert client.size("table") == items
            for _ in range(data.draw(st.integers(0, 3), "saves")):
                client.insert([1.0], {"table": 1.0})
                items += 1
                known[client.checkpoint()] = items
                others = sorted(it for it in known if it != load)
                for path in others[: max(0, len(others) - keep)]:
                    del known[path]
                assert {str(it.parent) for it in root.glob("*/DONE")} == set(known)
