# SPDX-License-Identifier: Apache-2.0
"""The command as a program: arguments, exit codes, errors, Ctrl-C, checkpoints from end to end."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import reverb
from reverb import command, testing
from support.commands import all_commands
from support.programs import Program
from support.waiting import DEADLINE_S

# Written by dm-reverb 0.14.0.
SAMPLE = pathlib.Path(__file__).parents[1] / "checkpoints" / "sample" / "dm_reverb_0.14.0"

MAIN = "import sys\nfrom reverb.command import main\nsys.exit(main(sys.argv[1:]))"


@pytest.fixture
def checkpoint(tmp_path):
    """The path of a checkpoint of 20 items of two steps."""
    root = tmp_path / "root"
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
        client = reverb.Client(f"127.0.0.1:{server.port}")
        with client.trajectory_writer(2) as writer:
            for i in range(21):
                writer.append({"x": np.arange(100) + i})
                if i:
                    writer.create_item("table", float(i), {"x": writer.history["x"][-2:]})
        return pathlib.Path(client.checkpoint())


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def test_python_m_reverb_is_the_command():
    with testing.server() as client:
        command_line = [sys.executable, "-m", "reverb", "inspect", client.server_address]
        result = subprocess.run(command_line, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"server {client.server_address}, 1 table\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["inspect"],
        ["export", "127.0.0.1:1"],
        ["export", "127.0.0.1:1", "--table=t", "--format=csv", "--output=x"],
        ["export", "127.0.0.1:1", "--table=t", "--format=npz", "--output=x", "--max-items=0"],
        ["export", "127.0.0.1:1", "--table=t", "--format=npz", "--output=x", "--shard-items=a"],
    ],
)
def test_a_bad_command_line_has_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: reverb")


def test_help_tells_how_to_read_each_format(capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(["export", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for word in ("offsets[i] : offsets[i + 1]", "read_table", "parse_single_example"):
        assert word in out


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere", "nowhere is neither a directory nor the address of a server; "),
        ("/no/2026-11-20T09:47:14+00:00", " is neither a directory nor the address of a server; "),
        ("host:0", "the port of host:0 must be from 1 to 65535, got 0"),
        ("[::1]:99999", "the port of [::1]:99999 must be from 1 to 65535, got 99999"),
        ("127.0.0.1:1", "No server answered at 127.0.0.1:1"),
    ],
)
def test_errors_are_one_line_and_exit_code_1(run, source, says):
    code, out, err = run("inspect", source, "--timeout=0.2")
    assert (code, out) == (1, "")
    assert err.startswith("reverb: error: ")
    assert says in err
    assert err.count("\n") == 1


def test_a_directory_without_checkpoints_is_an_error(run, tmp_path):
    code, out, err = run("inspect", tmp_path)
    assert (code, out) == (1, "")
    assert f"There is no complete checkpoint at {tmp_path}" in err


def test_ctrl_c_ends_with_130_and_without_a_traceback():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Program(MAIN, "inspect", address, "--timeout", 60) as program:
            connection, _ = silent.accept()
            with connection:
                program.signal(signal.SIGINT)
                assert program.ended() == 130
            assert program.errors == ""


def test_a_reader_that_has_seen_enough_is_no_error():
    with testing.server() as client:
        reading, writing = os.pipe()
        os.close(reading)
        command_line = [sys.executable, "-m", "reverb", "inspect", client.server_address]
        result = subprocess.run(command_line, stdout=writing, stderr=subprocess.PIPE, text=True)
        os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


def test_a_checkpoint_and_its_server_export_the_same(run, checkpoint, tmp_path):
    from_root = tmp_path / "from_root.npz"
    options = ("--table=table", "--format=npz", "--output")
    assert run("export", checkpoint.parent, *options, from_root)[0] == 0
    found = arrays(from_root)
    assert found["item/priority"].tolist() == list(range(1, 21))
    assert (np.diff(found["item/inserted_at"]) >= 0).all()
    expected = np.concatenate([[np.arange(100) + i, np.arange(100) + i + 1] for i in range(20)])
    np.testing.assert_array_equal(found["column_0"], expected)

    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(checkpoint.parent))
    with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
        from_server = tmp_path / "from_server.npz"
        assert run("export", f"127.0.0.1:{server.port}", *options, from_server)[0] == 0
    for name, array in arrays(from_server).items():
        np.testing.assert_array_equal(array, found[name], err_msg=name)


def test_the_oldest_items_of_a_checkpoint(run, checkpoint, tmp_path):
    out = tmp_path / "out.npz"
    options = ("--table=table", "--format=npz", "--max-items=3", "--output", out)
    assert run("export", checkpoint, *options) == (0, f"3 items of table table in {out}\n", "")
    assert arrays(out)["item/priority"].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("arguments", [["inspect"], ["export", "--table=table", "--format=npz"]])
def test_a_damaged_checkpoint_is_an_error_that_names_the_file(run, checkpoint, tmp_path, arguments):
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged)
    chunks = damaged / "chunks.tfrecord"
    chunks.write_bytes(chunks.read_bytes()[:-40])
    out = tmp_path / "out"
    output = ["--output", out] if arguments[0] == "export" else []
    code, printed, err = run(arguments[0], damaged, *arguments[1:], *output)
    assert (code, printed) == (1, "")
    assert "chunks.tfrecord" in err
    assert err.count("\n") == 1
    assert not out.exists()
    assert not list(tmp_path.glob(".out*"))


def test_a_dm_reverb_checkpoint_of_several_layouts_is_exported(run, tmp_path):
    out = tmp_path / "out"
    options = ("--table=fifo", "--format=npz", "--output", out)
    assert run("export", SAMPLE, *options)[0] == 0
    numbers, text = arrays(out / "part-00000.npz"), arrays(out / "layout1-part-00000.npz")
    assert numbers["column_0"].tolist() == [3, 5]
    assert numbers["column_1"].tolist() == [[3, -3], [5, -5]]
    assert numbers["item/times_sampled"].tolist() == [2, 0]
    assert text["column_0/offsets"].tolist() == text["column_1/offsets"].tolist() == [0, 3, 5]
    assert text["column_0"][3:].tolist() == [[1, 10, 255], [2, 20, 255]]
    assert text["column_1"].tobytes() == b"s0s1s2s1s2"
    assert text["item/priority"].tolist() == [9.0, 10.0]


@pytest.mark.parametrize("name", sorted(all_commands()))
def test_the_docs_show_every_command(name):
    pages = (pathlib.Path(__file__).parents[2] / "docs").glob("**/*.md")
    assert any(re.search(rf"\breverb {name}\b", page.read_text()) for page in pages)
