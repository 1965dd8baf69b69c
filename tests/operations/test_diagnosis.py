# SPDX-License-Identifier: Apache-2.0
"""Staged stalls: each one is named within 2 s of its cause, and every view shows it."""

import contextlib
import html
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest

import reverb
from reverb import command, testing
from reverb.command.top import app
from reverb.command.top.line import ROLE_OF_STATE
from reverb.errors import DeadlineExceededError, ReverbError, TableNotFoundError
from reverb.server_status import STATES, Diagnosis, ServerStatus
from support.pages import get
from support.stalls import (
    INSERTS_WAIT,
    PROMPT_S,
    SAMPLES_WAIT,
    SPECIAL_STALLS,
    STALLS,
    TIMEOUTS,
    Stage,
    limiter,
    looping,
    slow_readers,
)
from support.waiting import wait_until

WATCHING = (pathlib.Path(__file__).parents[2] / "docs/howto/watching.md").read_text()


@pytest.mark.parametrize("state", STALLS | SPECIAL_STALLS)
def test_a_state_has_its_sentence_reasons_and_errors(state):
    """The server says all of them; the views only show them."""
    stage_it, options, words = (STALLS | SPECIAL_STALLS)[state]
    with Stage(**options) as stage:
        stage.client.diagnose("replay")  # From now on there are rates.
        stage_it(stage)
        # A wait counts from one second on, or when waits take half of the last seconds.
        in_time = (10 if state == "starved" else 1) + PROMPT_S
        wait_until(lambda: stage.state() == state, in_time)
        wait_until(lambda: words in stage.client.diagnose("replay").sentence, PROMPT_S)
        assert stage.server.status().tables["replay"].diagnosis.state == state
        for side, reasons in (("inserting", INSERTS_WAIT), ("sampling", SAMPLES_WAIT)):
            wait_until(lambda: reasons.get(state, "") in reason_of(stage, side))  # noqa: B023
            assert reason_of(stage, side) == "" or state not in RESTING
        if state in INSERTS_WAIT:
            assert f"Table replay is {state}: " in flush_error(stage)
        told = [texts[state] for texts in (SAMPLES_WAIT, TIMEOUTS) if state in texts]
        errors = []

        def times_out():
            # In a table that is ahead there may be a sample at this moment.
            errors.append(sample_error(stage))
            return errors[-1]

        if told:
            wait_until(times_out)
            assert all(text in errors[-1] for text in [*told, RATE_LIMITER_TIMEOUT]), errors[-1]


# Programs of dm-reverb look for it.
RATE_LIMITER_TIMEOUT = "Rate Limiter: Timeout exceeded."

# Nobody waits for the table.
RESTING = ("never", "draining", "idle", "slow readers")


def reason_of(stage, side):
    return getattr(stage.client.status().tables["replay"], side).reason or ""


def sample_error(stage):
    """The error of a request for a sample that may not wait; empty if it got one."""
    try:
        stage.client.sample_batch("replay", 1, timeout_ms=0)
    except DeadlineExceededError as error:
        return str(error)
    return ""


def flush_error(stage):
    """The error of a flush of an item that waits."""
    writer = stage.client.trajectory_writer(1)
    writer.append({"x": np.zeros(4)})
    writer.create_item("replay", 1.0, {"x": writer.history["x"][-1]})
    with pytest.raises(DeadlineExceededError) as raised:
        writer.flush(timeout_ms=50)

    def close():
        with contextlib.suppress(ReverbError):
            writer.close()

    stage.stack.callback(close)
    return str(raised.value)


def test_every_view_shows_the_state_and_the_sentence(capsys):
    """Of a table at which both sides wait."""
    stage_it, options, words = STALLS["stuck"]
    with Stage(**options) as stage:
        address = f"127.0.0.1:{stage.server.port}"
        stage_it(stage)
        wait_until(lambda: stage.state() == "stuck")
        for arguments, expected in ((["why"], 4), (["top", "--once"], 0)):
            assert command.main([*arguments, address]) == expected
            out = capsys.readouterr().out
            assert re.search(rf"^replay  stuck  .*{words}", out, re.MULTILINE), out
        page = get(stage.server, "/").text
        assert ">stuck</span>" in page
        assert words in html.unescape(page)
        metrics = get(stage.server, "/metrics").text
        for name in ("waiting", "oldest_wait_seconds"):
            found = re.findall(rf'reverb_table_{name}{{table="replay",side="\w+"}} (.*)', metrics)
            assert [float(value) > 0 for value in found] == [True, True], name


def test_slow_readers_are_named():
    with Stage() as stage:
        slow_readers(stage)
        wait_until(lambda: stage.state() == "slow readers")
        sentence = stage.client.diagnose("replay").sentence
        assert sentence.startswith("1 reader does not take what is ready: client 127.0.0.1:")
        assert ", learner-3 has read nothing for " in sentence
        (slow,) = [
            stream
            for stream in stage.client.status(with_streams=True).streams
            if stream.waits_for == "peer"
        ]
        assert (slow.kind, slow.table) == ("sample", "replay")
        assert (slow.client, slow.wait_s >= 1, slow.items >= 100) == ("learner-3", True, True)


def test_streams_are_told_with_their_clients(monkeypatch):
    with Stage(rate_limiter=limiter(1.0, 5, -1e9, 1e9)) as stage:
        stage.insert(3)
        stage.sample_all_the_time()
        remote = reverb.Client(f"127.1:{stage.server.port}")
        remote.insert(np.zeros(4), {"replay": 1.0})

        def streams():
            return stage.client.status(with_streams=True).streams

        wait_until(lambda: any(stream.waits_for == "table" for stream in streams()))
        kinds = {(stream.kind, stream.peer == "this process") for stream in streams()}
        assert kinds == {("insert", True), ("insert", False), ("sample", True)}
        (there,) = [stream for stream in streams() if stream.peer != "this process"]
        assert there.client.split(":")[1] == str(os.getpid())
        assert (there.table, there.items, there.waits_for) == ("replay", 1, None)
        (sampler,) = [stream for stream in streams() if stream.kind == "sample"]
        assert (sampler.table, sampler.items) == ("replay", 0)
        assert sampler.open_s >= sampler.wait_s > 0
        assert stage.client.status().streams == ()


def test_a_client_says_who_it_is():
    program = "import reverb, sys, time; c = reverb.Client(sys.argv[1]); "
    program += "c.insert([0.0], {'replay': 1.0}); time.sleep(30)"
    with Stage() as stage:
        actor = subprocess.Popen(
            [sys.executable, "-c", program, f"127.0.0.1:{stage.server.port}"],
            env={**os.environ, "REVERB_CLIENT_NAME": "actor-7 \u00e9" + "x" * 1000},
        )
        try:
            wait_until(lambda: stage.client.status(with_streams=True).streams)
            (stream,) = stage.client.status(with_streams=True).streams
            assert stream.client == "actor-7 " + "x" * 248
        finally:
            actor.kill()
            actor.wait()


def test_a_full_server_is_named():
    """The server holds writers back before the table sees their items."""
    table = testing.table("replay", max_bytes="1GiB", when_full="wait")
    with reverb.Server([table], max_bytes="16MiB") as server:
        client = reverb.Client(f"127.0.0.1:{server.port}", connect_timeout_s=0.2)
        noise = np.random.default_rng(0).integers(0, 256, 400_000, dtype=np.uint8)
        with looping(lambda: client.insert(noise, {"replay": 1.0})):
            wait_until(lambda: client.diagnose("replay").state == "full")
            sentence = client.diagnose("replay").sentence
            assert sentence.startswith("Inserts wait for memory: the server holds 15.")
            assert "of 16.0 MiB (max_bytes)" in sentence

            def inserting():
                return client.status().tables["replay"].inserting

            wait_until(lambda: (inserting().oldest_wait_s or 0.0) > 1)
            held = inserting()
            assert (held.waiting, held.reason) == (1, sentence)
            assert held.blocked_s >= 1
            why = ["why", client.server_address, "--longer-than", "1"]
            assert command.main(why) == 3
            wait_until(lambda: client.status().tables["replay"].rates.insert_blocked > 0.5)
            client.reset("replay")
            wait_until(lambda: inserting().wait_s.sum >= 1)
            server.stop()


class TestWhy:
    def test_json_and_order(self, capsys):
        tables = [
            testing.table("busy"),
            testing.table("hopeless", max_size=5, rate_limiter=limiter(min_size=6)),
        ]
        with reverb.Server(tables, host="127.0.0.1") as server:
            client = reverb.Client(f"127.0.0.1:{server.port}")
            client.insert(np.zeros(2), {"busy": 1.0})
            address = f"127.0.0.1:{server.port}"
            assert command.main(["why", address, "--json"]) == 4
            told = json.loads(capsys.readouterr().out)
            assert told["server"] == address
            assert list(told["tables"]) == ["hopeless", "busy"], "the worst first"
            assert told["tables"]["busy"]["state"] == "flowing"
            assert told["tables"]["busy"]["rates"]["seconds"] >= 1
            assert command.main(["why", address, "busy"]) == 0
            assert capsys.readouterr().out.startswith("busy  flowing  ")
            assert command.main(["why", address, "missing"]) == 1
            assert "it has: busy, hopeless" in capsys.readouterr().err

    def test_a_terminal_finds_nothing_to_obey_in_names(self, capsys):
        hostile = "\x1b[31mred\n\u202e[red]x[/red]"
        with reverb.Server([testing.table(hostile), testing.table("x" * 10_000)]) as server:
            address = f"127.1:{server.port}"
            assert command.main(["why", address]) == 0
            lines = capsys.readouterr().out.splitlines()
            assert len(lines) == 3
            assert lines[0].split("  ")[0] == r"\x1b[31mred\n\u202e[red]x[/red]"
            assert lines[1].startswith("x" * 59 + "\u2026  idle")
            assert command.main(["why", address, "missing"]) == 1
            assert r"it has: \x1b[31mred " in capsys.readouterr().err


def test_a_missing_table_is_named():
    missing = pytest.raises(TableNotFoundError, match="Priority table b was not found")
    with testing.server([testing.table("a")]) as client, missing:
        client.diagnose("b")


@pytest.mark.parametrize("state", STATES)
def test_every_state_is_staged_and_explained(state):
    """Fails for a state that was forgotten somewhere; CONTRIBUTING.md has the recipe."""
    assert state in STALLS | SPECIAL_STALLS or state in ("shard down", "unknown")
    assert f"* `{state}`: " in (Diagnosis.__doc__ or "")
    assert state in ROLE_OF_STATE
    assert re.search(rf"\b{state}\b", app._HELP) or state == "unknown"
    assert re.search(rf"^\|[^|]*`{state}`", WATCHING, re.MULTILINE) or state == "unknown"


def test_a_state_of_a_newer_server_is_unknown():
    """`TableStatus { name: "t" diagnosis { state: "x" } }`."""
    status = ServerStatus.from_serialized_proto(b"\x12\x09\x0a\x01t\xaa\x01\x03\x0a\x01x")
    assert status.tables["t"].diagnosis.state == "unknown"
    assert "unknown" in STATES


def test_rates_are_those_of_the_last_seconds():
    with Stage() as stage:
        stage.client.status()
        stage.insert(500)
        time.sleep(1.2)
        rates = stage.client.status().tables["replay"].rates
        assert 1.0 <= rates.seconds <= 10
        assert rates.inserts_per_s * rates.seconds == pytest.approx(500, rel=1e-3)
        assert rates.samples_per_s == rates.insert_blocked == rates.sample_blocked == 0
