# SPDX-License-Identifier: Apache-2.0
"""The command where the output is full or closed, and where the locale knows ASCII alone."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.checkpointers import DefaultCheckpointer

NAME = "表 ümläut"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ENVIRONMENTS = [{"PYTHONIOENCODING": "ascii"}, ASCII, {"PYTHONIOENCODING": "cp1252"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server's address and the path of a checkpoint, of a table with a name that is no ASCII."""
    root = str(tmp_path_factory.mktemp("saved"))
    table = testing.table(NAME, signature={"größe": reverb.specs.TensorSpec([1, 2], np.float64)})
    with reverb.Server([table], checkpointer=DefaultCheckpointer(root)) as server:
        client = server.localhost_client()
        client.insert_batch({"größe": np.zeros((3000, 2))}, {NAME: 1.0})
        yield f"127.0.0.1:{server.port}", client.checkpoint()


def run(command, **options):
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)} | options.pop("environment", {})
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, **options)
    errors = done.stderr.decode(errors="replace")
    assert "Traceback" not in errors
    return done, errors


REVERB = [sys.executable, "-m", "reverb"]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=["output", "locale", "code page"])
def test_names_that_are_no_ascii(served, environment, tmp_path):
    address, path = served
    exported = ["--format", "npz", "--output", str(tmp_path / "out")]
    for command in (
        ["inspect", address],
        ["inspect", path, "--table", NAME, "--json"],
        ["why", address, NAME],
        ["top", address, NAME, "--once"],
        ["export", path, "--table", NAME, *exported],
        ["configure", address, "--table", NAME, "--max-size", "900000"],
        ["pause", address, "--table", NAME],
        ["resume", address, "--table", NAME],
    ):
        done, errors = run([*REVERB, *command], environment=environment)
        assert done.returncode in (0, 3), (command, errors)
        if "--json" in command:
            assert list(json.loads(done.stdout)["tables"]) == [NAME]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")  # noqa: PTH110
@pytest.mark.parametrize(
    ("script", "codes"),
    [
        ('set -o pipefail; "$0" "$@" | head -c 1 > /dev/null', None),
        ('"$0" "$@" > /dev/full', [1]),
        ('"$0" "$@" >&-', [0, 3]),
    ],
    ids=["broken pipe", "full", "closed"],
)
def test_outputs_that_take_nothing(served, script, codes):
    address, path = served
    for command in (["inspect", path], ["inspect", path, "--json"], ["top", address, "--once"]):
        done, errors = run(["bash", "-c", script, *REVERB, *command])
        assert codes is None or done.returncode in codes, (command, errors)
        assert "BrokenPipe" not in errors


def test_a_name_that_is_no_utf8_is_an_error(served):
    done, errors = run([*REVERB, "inspect", served[0], "--table", b"\xff\xfe"])
    assert done.returncode == 1
    assert errors.startswith("reverb: error: ")
