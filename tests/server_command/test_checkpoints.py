# SPDX-License-Identifier: Apache-2.0
"""The command `reverb_server` with a directory for checkpoints: load, save, stop, damage."""

import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from support import reverb_server
from support.programs import Program
from support.reverb_server import COMMAND, CONFIG
from support.waiting import DEADLINE_S


def running(root, *options, config=CONFIG):
    """A server in a process of its own, and a client of it."""
    return reverb_server.running("--checkpoint-dir", root, *options, config=config)


def complete_checkpoints(root):
    return sorted(marker.parent for marker in root.glob("*/DONE"))


def test_items_at_the_stop_are_there_after_the_next_start(root):
    with running(root, "--checkpoint-on-stop") as (program, client):
        assert client.checkpoint_status().restored_from is None
        client.insert([7], {"t": 3.0})
        program.stop()
    (saved,) = complete_checkpoints(root)
    with running(root) as (program, client):
        assert pathlib.Path(client.checkpoint_status().restored_from) == saved
        ((sample,),) = client.sample("t")
        assert (int(sample.data[0]), sample.info.priority) == (7, 3.0)
        client.insert([8], {"t": 1.0})
        program.stop()
    # This one was not told to save.
    assert complete_checkpoints(root) == [saved]


def test_it_saves_at_the_stop_although_its_output_is_closed(root):
    arguments = [f"--config={CONFIG}", f"--checkpoint-dir={root}", "--checkpoint-on-stop"]
    command = [sys.executable, "-c", COMMAND, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT) as process:
        assert any(b" is ready " in line for line in process.stdout)
        process.stdout.close()
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    assert len(complete_checkpoints(root)) == 1


@pytest.fixture
def saved(root):
    """A checkpoint of one item."""
    with running(root) as (_, client):
        client.insert([7], {"t": 1.0})
        return pathlib.Path(client.checkpoint())


def test_a_checkpoint_with_another_signature_ends_the_start(root):
    columns = 'max_size: 20 columns: ["a int32", "obs %s[?,4]"]'
    with running(root, config=CONFIG.replace("max_size: 20", columns % "float32")) as (_, client):
        client.checkpoint()
    other = CONFIG.replace("max_size: 20", columns % "float64")
    with Program(COMMAND, f"--config={other}", "--checkpoint-dir", root) as program:
        assert program.ended() == 1
        assert f"cannot start: Checkpoint {root}/" in program.errors
        assert (
            "Table t: the signature of the config has column obs double [?,4], and the stored one "
            "has column obs float [?,4]. Change the config" in program.errors
        )
    with running(root, "--restore-settings", config=other) as (_, client):
        assert client.server_info()["t"].signature["obs"].dtype == "float32"


def test_a_damaged_checkpoint_is_a_failure_that_names_the_file(root, saved):
    file = saved / "items.tfrecord"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    with Program(COMMAND, f"--config={CONFIG}", "--checkpoint-dir", root) as program:
        assert program.ended() == 1
        assert "ERROR server: cannot start: " in program.errors
        assert str(file) in program.errors


def test_a_last_save_that_fails_is_a_failure_of_the_stop(root, saved):
    with running(root, "--checkpoint-on-stop") as (program, _):
        shutil.rmtree(root)
        root.write_text("no directory")
        program.signal(signal.SIGTERM)
        assert program.ended() == 1
        assert "ERROR server: stopped, but: " in program.errors
        (line,) = [line for line in program.errors.splitlines() if " ERROR " in line]
        assert str(root) in line
