# SPDX-License-Identifier: Apache-2.0
"""`reverb checkpoint list` and `reverb checkpoint verify`: directories without a server."""

import pathlib
import re

import numpy as np
import pytest

import reverb
from reverb import testing
from support.checkpoints import on_disk


def server(root, name=None):
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root), keep_latest=9, name=name)
    return reverb.Server([testing.table("a"), testing.table("b")], checkpointer=checkpointer)


def save(client, items):
    client.insert_batch({"x": np.arange(items)}, {"a": 1.0})
    return pathlib.Path(client.checkpoint())


@pytest.fixture
def saved(tmp_path):
    """Two checkpoints of 3 and 5 items in a directory, of a server that has stopped."""
    with server(tmp_path) as made:
        return [save(made.localhost_client(), items) for items in (3, 2)]


def told(out):
    """What was said of each, by name."""
    return dict(line.split(": ", 1) for line in out.splitlines())


def test_a_list_says_what_is_there(run, tmp_path, saved):
    (tmp_path / "notes").mkdir()
    with server(tmp_path, "other") as made:
        other = save(made.localhost_client(), 1)
        (tmp_path / ".partial-0123").mkdir()
        (tmp_path / ".partial-0123" / on_disk.TABLES).write_bytes(b"")
        code, out, _ = run("checkpoint list", tmp_path)
        assert run("checkpoint", "list", tmp_path)[1] == out
    first, second = (path.name for path in saved)
    about = told(out)
    assert (code, list(about)) == (0, [".partial-0123", first, second, other.name])
    assert about[".partial-0123"] == "not complete: no start loads it"
    sized = r"20\d\d-\d\d-\d\d .* \(\d s ago\), \d+ B, {} items of a, 0 items of b{}"
    assert re.fullmatch(sized.format(3, ""), about[first])
    assert re.fullmatch(sized.format(5, ", latest"), about[second])
    of_other = ", server other, in use by a running server, latest"
    assert re.fullmatch(sized.format(1, of_other), about[other.name])


def test_a_group_is_listed_by_the_directories_of_its_shards(run, tmp_path):
    paths = []
    for index in range(2):
        with server(tmp_path / f"shard-{index}") as made:
            paths.append(save(made.localhost_client(), index + 1))
    for action in ("list", "verify"):
        code, out, _ = run("checkpoint", action, tmp_path)
        names = [str(path.relative_to(tmp_path)) for path in paths]
        assert (code, list(told(out))) == (0, names)
    assert "2 items" in told(out)[names[1]]


@pytest.mark.parametrize("name", on_disk.FILES)
def test_damage_is_found_by_verify(run, tmp_path, saved, name):
    whole, damaged = saved
    code, out, err = run("checkpoint", "verify", tmp_path, "--no-progress")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"whole, \d+ B, 3 items", told(out)[whole.name])
    good = (damaged / name).read_bytes()
    changed = bytearray(good)
    changed[len(good) // 2] ^= 4
    for bad in (bytes(changed), good[:-1]):
        (damaged / name).write_bytes(bad)
        code, out, _ = run("checkpoint", "verify", tmp_path)
        about = told(out)
        assert code == 1
        assert about[whole.name].startswith("whole, ")
        assert about[damaged.name].startswith(f"Checkpoint file {damaged / name} is damaged ")
        assert run("checkpoint", "verify", damaged)[0] == 1
        assert run("checkpoint", "verify", whole)[0] == 0
    # The size tells of a file that was cut, without reading it.
    about = told(run("checkpoint", "list", tmp_path)[1])
    assert f"{damaged / name} is damaged" in about[damaged.name]
    assert about[whole.name].endswith("of b")


@pytest.mark.parametrize("action", ["list", "verify"])
def test_a_directory_without_checkpoints_is_an_error(run, tmp_path, action):
    for path in (tmp_path, tmp_path / "missing"):
        code, out, err = run("checkpoint", action, path)
        assert (code, out) == (1, "")
        assert err == f"reverb: error: {path} is no directory with checkpoints\n"


def test_neither_word_is_an_address(run):
    for word in ("list", "verify"):
        with pytest.raises(reverb.errors.InvalidArgumentError):
            reverb.Client(word)
        assert run("checkpoint", "--timeout=1", word)[0] == 1
