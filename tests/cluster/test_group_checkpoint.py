# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a group: complete or not there, whatever happens to those that write them."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import testing
from reverb.cluster import group_checkpoint, group_manifest
from reverb.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from support.programs import Program, run

SLOTS = [
    {"first": 0, "count": 2048, "owner": 0, "former_owners": []},
    {"first": 2048, "count": 2048, "owner": 1, "former_owners": [0]},
]


@pytest.fixture
def shards(root):
    """Two servers that save to directories of their own, as the shards of a group do."""
    with contextlib.ExitStack() as stack:
        clients = {}
        for index in range(2):
            path = group_checkpoint.shard_directory(root, index)
            checkpointer = reverb.checkpointers.DefaultCheckpointer(str(path), name=f"g.{index}")
            server = reverb.Server([testing.table()], checkpointer=checkpointer)
            stack.enter_context(server)
            clients[index] = server.localhost_client()
        yield clients


@pytest.fixture
def save(root, shards):
    def save(**options):
        options = {"epoch": 3, "slots": SLOTS} | options
        return group_checkpoint.save(root, "replay", options.pop("shards", shards), **options)

    return save


class Dead:
    """A client of a shard that does not answer."""

    def checkpoint(self):
        raise reverb.errors.UnavailableError("connection refused")

    checkpoint_status = checkpoint


def fill(shards, counts):
    for index, count in enumerate(counts):
        for number in range(count):
            shards[index].insert([np.int64(number)], {"table": 1.0})


def num_items(checkpoint):
    return {
        index: reverb.checkpointers.read(checkpoint.path_of(index)).tables["table"].current_size
        for index in checkpoint.parts
    }


def groups(root):
    return sorted(path.name for path in root.iterdir() if path.name.startswith("group-"))


def test_a_saved_group_is_read_again_with_all_that_it_has(root, shards, save):
    fill(shards, [3, 5])
    saved = save(tables=[{"name": "table", "maxSize": "10"}])
    assert saved.path.parent == root
    found = group_checkpoint.latest(root, "replay")
    assert found == saved
    assert (found.epoch, found.slots, found.group) == (3, SLOTS, "replay")
    assert found.tables == [{"name": "table", "maxSize": "10"}]
    assert num_items(found) == {0: 3, 1: 5}


def test_every_part_is_a_checkpoint_for_one_server(shards, save):
    fill(shards, [3, 5])
    part = save().path_of(1)
    shards[1].checkpoint()  # A shard that runs holds its latest checkpoint, and no other.
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(part.parent))
    with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
        assert server.server_info()["table"].current_size == 5


def test_a_shard_finds_its_part_in_its_own_directory_too(root, shards, save):
    fill(shards, [1, 1])
    part = save().path_of(0)
    own = group_checkpoint.shard_directory(root, 0) / part.name
    # The same files, not copies.
    assert (own / "DONE").samefile(part / "DONE")


def test_later_saves_of_a_shard_leave_the_group_alone(shards, save):
    fill(shards, [2, 2])
    saved = save()
    for _ in range(3):
        fill(shards, [1, 1])
        shards[0].checkpoint()
    saved.check()
    assert num_items(saved) == {0: 2, 1: 2}


def test_keep_latest_counts_groups(root, save):
    names = [save(keep_latest=2).path.name for _ in range(4)]
    assert names == sorted(names)
    assert groups(root) == names[-2:]
    assert group_checkpoint.latest(root).path.name == names[-1]


def test_a_directory_without_manifest_is_no_checkpoint(root, save):
    first = save()
    second = save(keep_latest=2)
    (second.path / "GROUP").unlink()
    assert group_checkpoint.latest(root).path == first.path
    with pytest.raises(FailedPreconditionError, match="has no file GROUP"):
        group_checkpoint.read(second.path)
    third = save()
    assert groups(root) == [third.path.name]


def test_no_directory_is_no_checkpoint(root):
    assert group_checkpoint.latest(root) is None


def test_shards_alone_have_their_latest_complete_checkpoint(root, shards):
    assert group_checkpoint.shards_alone(root) == {}
    fill(shards, [1, 1])
    shards[0].checkpoint()
    last = {index: pathlib.Path(shards[index].checkpoint()) for index in shards}
    directory = group_checkpoint.shard_directory(root, 0)
    (directory / ".partial-1").mkdir()
    (directory / ".partial-1" / "DONE").touch()
    (directory / "zzz").mkdir()
    (root / "shard-x").mkdir()
    assert group_checkpoint.shards_alone(root) == last


def test_a_shard_that_fails_is_named_and_the_group_before_stays(root, shards, save):
    before = save()

    with pytest.raises(FailedPreconditionError) as caught:
        save(shards={**shards, 7: Dead()})
    assert str(caught.value) == (
        "the group is not saved, because 1 of 3 shards could not save (shard 7: connection "
        "refused). Earlier checkpoints are kept"
    )
    assert group_checkpoint.latest(root) == before
    assert groups(root) == [before.path.name]


def test_a_checkpoint_on_another_machine_is_a_clear_error(root, shards, save):
    before = save()

    class Elsewhere:
        def checkpoint(self):
            return "/local/disk/of/another/node/2026"

        checkpoint_status = shards[0].checkpoint_status

    with pytest.raises(FailedPreconditionError, match=r"shard 1 saved /local/disk.*storage that"):
        save(shards={0: shards[0], 1: Elsewhere()})
    assert groups(root) == [before.path.name]


def test_the_coordinator_is_frozen_until_all_have_their_moment(shards, save):
    fill(shards, [1, 1])
    events = []

    class Watched:
        def __init__(self, client):
            self.client = client
            self.checkpoint_status = client.checkpoint_status

        def checkpoint(self):
            events.append("save")
            return self.client.checkpoint()

    watched = {index: Watched(client) for index, client in shards.items()}
    save(
        shards=watched,
        freeze=lambda: events.append("freeze"),
        unfreeze=lambda: events.append("unfreeze"),
    )
    assert events == ["freeze", "save", "save", "unfreeze"]


def test_it_is_unfrozen_when_a_shard_fails(save):
    events = []
    with pytest.raises(FailedPreconditionError):
        save(shards={0: Dead()}, freeze=lambda: None, unfreeze=lambda: events.append("unfrozen"))
    assert events == ["unfrozen"]


def test_two_saves_at_the_same_time_are_refused(root, shards, save):
    entered, go_on = threading.Event(), threading.Event()

    class Slow:
        checkpoint_status = shards[0].checkpoint_status

        def checkpoint(self):
            entered.set()
            go_on.wait(30)
            return shards[0].checkpoint()

    first = threading.Thread(target=save, kwargs={"shards": {0: Slow()}})
    first.start()
    assert entered.wait(30)
    with pytest.raises(FailedPreconditionError, match="another process saves the group to"):
        save()
    go_on.set()
    first.join()
    assert list(group_checkpoint.latest(root).parts) == [0]


def test_arguments_are_checked(save):
    with pytest.raises(InvalidArgumentError, match="shards must not be empty"):
        save(shards={})
    with pytest.raises(InvalidArgumentError, match="keep_latest must be at least 1, got 0"):
        save(keep_latest=0)


def test_a_shard_that_the_checkpoint_does_not_have_is_named(save):
    with pytest.raises(InvalidArgumentError, match=r"has no shard 5; it has \[0, 1\]"):
        save().path_of(5)


def test_checkpoints_of_another_group_are_refused(root, save):
    save()
    with pytest.raises(FailedPreconditionError, match="of the group 'replay', not of 'other'"):
        group_checkpoint.latest(root, "other")


def test_a_missing_part_names_shard_and_path(root, shards, save):
    fill(shards, [1, 1])
    part = save().path_of(1)
    shutil.rmtree(part)
    with pytest.raises(DataLossError) as caught:
        group_checkpoint.latest(root)
    assert "shard 1: its checkpoint" in str(caught.value)
    assert str(part) in str(caught.value)


def test_a_missing_or_short_file_of_a_part_is_named(root, shards, save):
    fill(shards, [1, 1])
    file = save().path_of(0) / "chunks.tfrecord"
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(DataLossError, match=r"shard 0: .*chunks.tfrecord must have .* is missing"):
        group_checkpoint.latest(root)
    file.write_bytes(content[:-1])
    with pytest.raises(DataLossError, match=r"shard 0: .*chunks.tfrecord must have .* bytes, got"):
        group_checkpoint.latest(root)


def test_another_checkpoint_in_the_place_of_a_part_is_noticed(root, shards, save):
    done = save().path_of(0) / "DONE"
    done.unlink()
    done.write_bytes(b"")
    with pytest.raises(DataLossError, match="is not the file that was saved: 0 bytes"):
        group_checkpoint.latest(root)


@pytest.mark.parametrize(
    "path", ["../evil", "/etc", "shard-0/../../x", "a//b", "", "a\\b", ".", "shard-0/./x"]
)
def test_a_manifest_cannot_lead_outside(save, path):
    directory = save().path
    fields = json.loads((directory / "GROUP").read_text())
    fields["shards"][0]["path"] = path
    (directory / "GROUP").write_text(json.dumps(fields))
    with pytest.raises(DataLossError, match="names a path that is not inside the checkpoint"):
        group_checkpoint.read(directory)


def test_foreign_files_are_never_deleted(root, shards, save):
    fill(shards, [1, 1])
    first = save()
    (first.path_of(0) / "notes.txt").write_text("mine")
    (root / "group-notes").mkdir()
    save()
    assert (first.path_of(0) / "notes.txt").read_text() == "mine"
    assert (root / "group-notes").is_dir()
    assert not (first.path / "GROUP").exists()


def test_a_file_system_without_links_gets_copies(save, shards, monkeypatch):
    fill(shards, [2, 2])

    def refuse(source, target):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    saved = save()
    saved.check()
    assert num_items(saved) == {0: 2, 1: 2}


def test_names_grow_when_the_clock_is_set_back(root, save, monkeypatch):
    first = save()
    monkeypatch.setattr(group_checkpoint.time, "time_ns", lambda: 10**18)
    second = save()
    assert second.path.name > first.path.name
    assert group_checkpoint.latest(root).path == second.path


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_manifest_is_data_loss_and_nothing_else(tmp_path, data):
    directory = tmp_path / "group-2026-01-01T00:00:00.000000000Z"
    directory.mkdir(exist_ok=True)
    part = group_checkpoint.Part(0, "shard-0/x", 1, 2)
    good = group_checkpoint.GroupCheckpoint(directory, "g", 1, SLOTS, {0: part})
    text = group_manifest.to_text(good).encode()
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, len(text)))
    (directory / "GROUP").write_bytes(text[:start] + data.draw(st.binary(max_size=8)) + text[end:])
    with contextlib.suppress(DataLossError):
        read = group_checkpoint.read(directory)
        assert all(not part.path.startswith("/") for part in read.parts.values())


# ---- Killed at every step ------------------------------------------------------------------------

# Saves twice; is killed at the n-th thing that it does to the disk during the second save. Events
# of Python's audit log stand for these; what the servers write comes before.
SAVER = """
    import os, signal, sys
    import numpy as np
    import reverb
    from reverb import testing
    from reverb.cluster import group_checkpoint

    root, last = sys.argv[1], int(sys.argv[2])
    shards, servers = {}, []
    for index in range(3):
        path = str(group_checkpoint.shard_directory(root, index))
        checkpointer = reverb.checkpointers.DefaultCheckpointer(path, name=f"g.{index}")
        servers.append(reverb.Server([testing.table()], checkpointer=checkpointer))
        shards[index] = servers[-1].localhost_client()

    def fill():
        for index, client in shards.items():
            for number in range(index + 1):
                client.insert([np.int64(number)], {"table": 1.0})

    count = 0

    def audit(event, arguments):
        global count
        if event not in {"open", "os.link", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}:
            return
        if root in str(arguments[0]):
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

    fill()
    group_checkpoint.save(root, "g", shards, epoch=1, slots=[])
    fill()
    print("first", flush=True)
    sys.addaudithook(audit)
    group_checkpoint.save(root, "g", shards, epoch=2, slots=[])
    print("second", count, flush=True)
    os._exit(0)
"""


def state(root):
    found = group_checkpoint.latest(root, "g")
    return found.epoch, num_items(found)


BEFORE = (1, {0: 1, 1: 2, 2: 3})
AFTER = (2, {0: 2, 1: 4, 2: 6})


def test_a_save_has_at_least_forty_steps(root):
    with Program(SAVER, root, 0) as program:
        assert program.line() == "first"
        assert int(program.line().split()[1]) >= 40
    assert state(root) == AFTER


# There are some 50 steps. Of the first 40, `make test` tries one in five, `make test-all` each.
@pytest.mark.parametrize(
    "step",
    [pytest.param(step, marks=[pytest.mark.slow] * (step % 5 != 3)) for step in range(1, 41)],
)
def test_kill_at_a_step_of_the_save(root, step):
    with Program(SAVER, root, step) as program:
        assert program.line() == "first"
        assert program.ended() == -signal.SIGKILL
    assert state(root) in (BEFORE, AFTER)
    # The next save removes the remains of the killed one.
    assert run(SAVER, root, 0)[-1].startswith("second")
    assert len(groups(root)) == 1
    epoch, counts = state(root)
    assert epoch == 2
    assert all(counts[index] >= AFTER[1][index] for index in counts)
