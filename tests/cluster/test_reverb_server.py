# SPDX-License-Identifier: Apache-2.0
"""`reverb_server --shard-index`: a process that is a shard."""

import contextlib
import re

import pytest

import reverb
from reverb.server_executable import server_main
from support.log_lines import messages
from support.programs import Program
from support.reverb_server import COMMAND
from support.rolling_restart import free_ports
from support.wire.shard_calls import ShardCalls

TABLE = """
tables: {
  table_name: "t"
  sampler: { uniform: true }
  remover: { fifo: true }
  max_size: 20
  max_times_sampled: 1
  rate_limiter: { min_size_to_sample: 1 samples_per_insert: 1 min_diff: 0 max_diff: 10 }
}
"""


@contextlib.contextmanager
def running(*arguments, **environment):
    with Program(COMMAND, f"--config={TABLE}", *arguments, **environment) as program:
        port = int(re.search(r"is ready on port (\d+)", program.line())[1])
        with ShardCalls(port) as calls:
            yield reverb.Client(f"localhost:{port}"), calls


def test_the_place_comes_from_the_environment():
    # As a StatefulSet gives it: the index of the pod.
    place = {"REVERB_SERVER_SHARD_INDEX": "1", "REVERB_SERVER_NUM_SHARDS": "4"}
    with running("--group=replay", **place) as (client, calls):
        told = calls.directory()
        assert (told.index, told.map.group, len(told.map.shards)) == (1, "replay", 4)
        info = client.server_info()["t"]
        assert (info.max_size, info.rate_limiter_info.max_diff) == (20, 2)
        client.insert(1, {"t": 1.0})
        assert client.server_info()["t"].current_size == 1


def test_a_shard_with_an_address_waits_for_the_coordinator():
    place = ("--shard-index=1", "--num-shards=2", "--group-address=shards:///a:1,b:2")
    with running(*place) as (_, calls):
        assert [shard.address for shard in calls.directory().map.shards] == ["a:1", "b:2"]
        [told] = next(calls.watch()).tables
        assert (told.min_diff, told.max_diff) == (0, 0), "it is closed"


def test_the_first_shard_coordinates_the_others():
    ports = free_ports(2)
    address = "shards:///" + ",".join(f"localhost:{port}" for port in ports)
    with contextlib.ExitStack() as shards:
        for index, port in enumerate(ports):
            place = {"REVERB_SERVER_SHARD_INDEX": str(index), "REVERB_SERVER_NUM_SHARDS": "2"}
            shards.enter_context(running(f"--port={port}", f"--group-address={address}", **place))
        client = reverb.Client(address)
        # The queue of the group is full with 10 items, wherever they are; at one of its shards.
        one = reverb.Client(f"localhost:{ports[1]}")
        for value in range(10):
            one.insert(value, {"t": 1.0})
        assert one.server_info()["t"].current_size == 10
        assert client.server_info()["t"].rate_limiter_info.max_diff == 10
        with one.trajectory_writer(1) as writer:
            writer.append([1])
            writer.create_item("t", 1.0, [writer.history[0][-1:]])
            with pytest.raises(reverb.DeadlineExceededError):
                writer.flush(timeout_ms=300)
            assert len(list(client.sample("t", 10))) == 10
            writer.flush()


@pytest.fixture
def ends(monkeypatch, capfd):
    """Runs the command; returns its exit code and what it says."""
    monkeypatch.setattr(server_main.server_log, "configure", lambda log_format: None)

    def ends(*arguments):
        monkeypatch.setattr("sys.argv", ["reverb_server", *arguments])
        with pytest.raises(SystemExit) as caught:
            server_main.app_run_main()
        output = capfd.readouterr()
        return caught.value.code, output.out, messages(output.err)

    return ends


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--shard-index=0"], "flag --shard-index needs --num-shards"),
        (["--group=a"], "flag --group needs --shard-index"),
        (
            ["--shard-index=3", "--num-shards=3"],
            "flag --shard-index: the index of the shard must be below the number of shards, 3 "
            "(flag --num-shards), got 3",
        ),
        (
            ["--shard-index=0", "--num-shards=20"],
            "--config, line 2: tables[0]: the rate limiter of table t is too fine for 20 shards: "
            "it lets inserts * samples_per_insert - samples move by 10 (max_diff - min_diff), "
            "0.5 in each shard, where it needs 1; 20 would do",
        ),
    ],
)
def test_a_check_tells_what_is_wrong_with_a_group(ends, arguments, problem):
    code, out, errors = ends("--check", f"--config={TABLE}", *arguments)
    assert (code, out, errors) == (2, "", [f"ERROR server: {problem}"])


def test_the_config_may_have_the_place(ends):
    text = f"server {{ shard {{ index: 5 num_shards: 4 }} }}{TABLE}"
    code, _, errors = ends("--check", f"--config={text}")
    assert code == 2
    assert errors == [
        "ERROR server: --config, line 1: server.shard.index must be below the number of shards, 4 "
        "(--config, line 1), got 5"
    ]
    text = text.replace("5", "3")
    assert ends("--check", f"--config={text}") == (0, "--config is good: tables t\n", [])
