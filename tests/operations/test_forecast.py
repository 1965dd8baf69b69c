# SPDX-License-Identifier: Apache-2.0
"""What full tables need, and the limit that they reach first: in status, why, top and page."""

import json
import pathlib
import re

import numpy as np
import pytest

import reverb
from reverb import command, specs, testing
from support.namespaces import NEEDS_UNSHARE, in_a_namespace
from support.pages import get
from support.programs import Program

MIB = 2**20
# 1000 items of it are 95.6 MiB with what belongs to each.
SIGNATURE = {"x": specs.TensorSpec((100_000,), np.uint8)}
# What follows depends on whether the server has a store.
UNTIL_LIMIT = r"Full tables need up to 95\.6 MiB; (beyond )?max_bytes of the server, 64\.0 MiB, "


def server(**options):
    return reverb.Server([testing.table("t", signature=SIGNATURE)], **options)


@pytest.fixture
def run(capsys):
    """Runs a command, and returns what it prints, as one line."""

    def run(*arguments):
        assert command.main([str(it) for it in arguments]) == 0
        return " ".join(capsys.readouterr().out.split())

    return run


def test_it_is_shown_everywhere(run):
    with server(max_bytes="64MiB", http_port=0) as made:
        address = f"localhost:{made.port}"
        forecast = made.status().forecast
        assert (forecast.first_limit, forecast.first_limit_bytes) == ("max_bytes", 64 * MIB)
        assert 100_000_000 < forecast.needed_bytes < 101_000_000
        assert re.match(UNTIL_LIMIT, forecast.sentence)
        assert f"memory: {forecast.sentence} checkpoints:" in run("why", address)
        assert forecast.sentence in run("top", "--once", address)
        of_why = json.loads(run("why", "--json", address))["memory"]
        assert of_why["needed_bytes"] == forecast.needed_bytes
        of_page = json.loads(get(made, "/api/status").text)["forecast"]
        of_top = json.loads(run("top", "--once", "--json", address))["forecast"]
        assert of_page == of_top
        assert of_top["sentence"] == of_why["sentence"] == forecast.sentence
        series = get(made, "/metrics").text
        assert f"\nreverb_memory_forecast_bytes {forecast.needed_bytes}" in series
        assert f'\nreverb_memory_first_limit_bytes{{limit="max_bytes"}} {64 * MIB}' in series


def test_without_a_signature_or_items_there_is_none(run):
    with reverb.Server([testing.table("t")]) as made:
        assert made.status().forecast is None
        assert "memory:" not in run("why", f"localhost:{made.port}")
        assert json.loads(run("why", "--json", f"localhost:{made.port}"))["memory"] is None


def test_a_store_takes_what_is_beyond_max_bytes(tmp_path):
    for name, size, told in (
        ("large", "80MiB", "payloads are on the disk alone, and the store has 80.0 MiB."),
        ("small", "64MiB", "and the store, 64.0 MiB, have less: items leave or inserts wait"),
    ):
        store = reverb.Store(tmp_path / name, max_bytes=size, journal=False)
        with server(max_bytes="24MiB", store=store) as made:
            assert told in made.status().forecast.sentence


def test_a_group_has_that_of_the_shard_nearest_to_its_limit(run):
    with server(max_bytes="512MiB") as first, server(max_bytes="64MiB") as second:
        places = [f"127.0.0.1:{it.port}" for it in (first, second)]
        told = run("why", "shards:///" + ",".join(places))
        assert re.search(rf"memory: Shard 1 \({places[1]}\): {UNTIL_LIMIT}", told)


STAGED = """
    import os
    import pathlib
    import sys

    groups = pathlib.Path("/sys/fs/cgroup")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(groups)], check=True)
    limit = groups / sys.argv[2]
    limit.parent.mkdir(exist_ok=True)
    limit.write_text("67108864")
    from operations.test_forecast import server
    with server(max_bytes="96MiB") as made:
        forecast = made.status().forecast
        print(forecast.first_limit, forecast.first_limit_bytes)
        print(forecast.sentence)
        # What is no limit, and no file, is none.
        limit.unlink()
        limit.mkdir()
        print(made.status().forecast.first_limit)
"""


@NEEDS_UNSHARE
@pytest.mark.parametrize(
    ("line", "file"),
    [(r"\d+:([\w,]+,)?memory[:,]", "memory/memory.limit_in_bytes"), ("0::", "memory.max")],
)
def test_the_limit_of_a_control_group_comes_first(tmp_path, line, file):
    if re.search(f"^{line}", pathlib.Path("/proc/self/cgroup").read_text(), re.MULTILINE) is None:
        pytest.skip("this machine has no control groups of that version")
    with Program(in_a_namespace(STAGED), tmp_path / "mounted", file) as program:
        assert program.line() == f"cgroup {64 * MIB}"
        assert program.line() == (
            "Full tables need up to 95.6 MiB; the limit of the control group, 64.0 MiB, is reached "
            "first, and there the system ends the server. Set max_bytes below it, or a smaller "
            "max_size."
        )
        assert program.line() == "max_bytes"
        assert program.ended() == 0
