# SPDX-License-Identifier: Apache-2.0
"""A shard that is frozen or dead: commands tell of the others, and change all shards or none."""

import contextlib
import json
import re
import signal
import time

import grpc
import pytest

import reverb
from reverb import testing
from reverb.core import protos
from support.frozen_servers import CHANGES, CONFIG, SOON_S, Commands
from support.programs import Program
from support.reverb_server import COMMAND
from support.rolling_restart import free_ports
from support.waiting import DEADLINE_S, wait_until


class Group(Commands):
    """Three processes that are shards.

    Attributes:
      places: The address of each shard.
    """

    def __init__(self, stack, capsys):
        ports = free_ports(3)
        self.places = [f"localhost:{port}" for port in ports]
        address = "shards:///" + ",".join(self.places)
        programs = []
        for index, port in enumerate(ports):
            arguments = (
                f"--port={port}",
                f"--shard-index={index}",
                "--num-shards=3",
                f"--group-address={address}",
            )
            program = Program(COMMAND, f"--config={CONFIG}", *arguments)
            programs.append(stack.enter_context(program))
        for program in programs:
            assert re.search(r"is ready on port", program.line())
        clients = [reverb.Client(place, connect_timeout_s=20) for place in self.places]
        super().__init__(address, programs, clients, capsys)


@pytest.fixture
def group(capsys):
    with contextlib.ExitStack() as stack:
        yield Group(stack, capsys)


def test_the_others_are_told_of_in_time(group):
    assert group.run("why")[0] == 0
    with group.frozen(0):
        code, out, _, took = group.run("why")
        assert (code, took < SOON_S) == (5, True)
        name, state, sentence = re.split("  +", out.strip(), maxsplit=2)
        assert (name, state) == ("t", "shard down")
        assert sentence.startswith(
            f"Shard 0 ({group.places[0]}, the coordinator) does not answer, so its items are "
            "missing; 2 of 3 shards continue. Without it: flowing, "
        )
        code, out, _, took = group.run("top", "--once")
        assert (code, took < SOON_S) == (5, True)
        assert f"  0  {group.places[0]}  down: no answer " in out
        assert f"  2  {group.places[2]}  up  10 items, " in out
        _, out, _, took = group.run("why", "--json")
        assert took < SOON_S
        assert json.loads(out)["tables"]["t"]["state"] == "shard down"
    wait_until(lambda: group.run("why")[0] == 0, DEADLINE_S)


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_items_of_the_others_can_be_read(group, how, tmp_path):
    group.programs[1].signal(how)
    told = f"Shard 1 ({group.places[1]}) does not answer, so its items are missing"
    code, out, _, took = group.run("inspect")
    assert (code, took < SOON_S) == (5, True)
    assert f"\n{told}.\n" in out
    assert "20 of 3,000 items" in out
    code, out, _, _ = group.run("inspect", "--json")
    report = json.loads(out)
    assert (code, report["tables"]["t"]["items"]["num_items"]) == (5, 20)
    assert report["missing_shards"] == [{"index": 1, "address": group.places[1]}]
    options = ["--table", "t", "--format", "npz", "--output", str(tmp_path / "out")]
    code, _, err, took = group.run("export", *options)
    assert (code, took < SOON_S) == (1, True)
    assert f"{told}: export the items of the others with --partial" in err
    assert not (tmp_path / "out").exists()
    code, out, _, took = group.run("export", "--partial", *options)
    assert (code, took < SOON_S, out.splitlines()[-1]) == (5, True, f"{told}.")
    description = json.loads((tmp_path / "out" / "_export.json").read_text())
    assert (description["num_items"], description["missing_shards"]) == (20, [1])
    client = reverb.Client(group.address, connect_timeout_s=0.2)
    assert sum(1 for _ in client.scan("t", partial=True)) == 20
    with pytest.raises(reverb.errors.UnavailableError, match=r"scan\(partial=True\) reads the"):
        next(client.scan("t"))


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_is_changed_then_or_later(group, name):
    if name == "resume":
        assert group.run("pause", "--table", "t")[0] == 0
    before = group.tables()
    with group.frozen(2):
        code, out, err, took = group.run(name, *CHANGES[name])
        assert (code, took < SOON_S) == (1, True), (out, err, took)
        assert f"hard 2 ({group.places[2]})" in err
        assert "nothing was changed" in err or name == "reset"
    # Calls that wait for it are done when it answers.
    wait_until(lambda: group.clients[2].status().now > 0)
    assert group.tables() == before


def test_a_group_that_is_known_already_is_frozen(group):
    """A frozen server with an open connection accepts requests, and answers none of them."""
    client = reverb.Client(group.address, connect_timeout_s=20)
    client.pause_table("t")
    with group.frozen(1):
        for change in (
            lambda: client.resume_table("t"),
            lambda: client.reset("t"),
            lambda: client.configure_table("t", max_size=300),
        ):
            began = time.monotonic()
            with pytest.raises(reverb.errors.UnavailableError, match=r"hard 1 \("):
                change()
            assert time.monotonic() - began < SOON_S
    wait_until(lambda: group.clients[1].status().now > 0)
    assert group.tables() == [(10, 1000, False)] * 3


def test_all_shards_are_changed_when_all_are_there(group):
    for name, options in CHANGES.items():
        assert group.run(name, *options)[0] == 0, name
    assert [table[:2] for table in group.tables()] == [(0, 100)] * 3


@pytest.mark.parametrize("is_late", [True, False])
def test_a_change_that_comes_after_its_deadline_is_refused(start, is_late):
    """As a shard finds it that was frozen when it was sent."""
    server = start(testing.table("t", max_size=100), host="127.0.0.1")
    client = reverb.Client(f"127.0.0.1:{server.port}")
    client.insert(1, {"t": 1.0})
    limit = {"not_after_ns": time.time_ns() + (-1 if is_late else 1) * 3_600_000_000_000}
    change = protos.TableChange(table="t", max_size=50)
    requests = {
        "/reverb.ReplayService/SetPaused": protos.SetPausedRequest(
            table="t", inserts=True, paused=True, **limit
        ),
        "/reverb.ReplayService/ConfigureTables": protos.ConfigureTablesRequest(
            changes=[change], **limit
        ),
        "/deepmind.reverb.ReverbService/Reset": protos.ResetRequest(table="t", **limit),
    }
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        for path, request in requests.items():
            call = channel.unary_unary(path)
            if is_late:
                with pytest.raises(grpc.RpcError) as caught:
                    call(request.SerializeToString(), timeout=DEADLINE_S)
                assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
                assert "s after its deadline, and nothing was changed" in caught.value.details()
            else:
                call(request.SerializeToString(), timeout=DEADLINE_S)
    table = client.status().tables["t"]
    told = (table.items, table.max_items, table.inserting.paused is None)
    assert told == ((1, 100, True) if is_late else (0, 50, False))
