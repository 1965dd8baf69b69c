# SPDX-License-Identifier: Apache-2.0
"""Another number of shards, as `docs/howto/deploying.md` tells it: copy out, reshard, copy in."""

import contextlib
import pathlib
import re
import shutil
import signal

import numpy as np
import pytest

import reverb
from reverb import command
from support.programs import Program
from support.reverb_server import COMMAND
from support.rolling_restart import free_ports
from support.waiting import wait_until

CONFIG = """
tables: {
  table_name: "t"
  sampler: { prioritized: { priority_exponent: 1 } }
  remover: { fifo: true }
  max_size: 400
  rate_limiter: { min_size_to_sample: 10 samples_per_insert: 2 min_diff: -380 max_diff: 1000 }
}
tables: {
  table_name: "queue"
  sampler: { fifo: true }
  remover: { fifo: true }
  max_size: 50
  max_times_sampled: 1
  rate_limiter: { min_size_to_sample: 1 samples_per_insert: 1 min_diff: 0 max_diff: 50 }
}
"""
DOCS = pathlib.Path(__file__).parents[2] / "docs" / "howto" / "deploying.md"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tables.textproto"
    path.write_text(CONFIG)
    return path


@contextlib.contextmanager
def group(machines, config):
    """A coordinated group of processes, each on a machine of its own: a directory."""
    ports = free_ports(len(machines))
    address = "shards:///" + ",".join(f"localhost:{port}" for port in ports)
    with contextlib.ExitStack() as stack:
        programs = []
        for index, (port, machine) in enumerate(zip(ports, machines, strict=True)):
            options = (
                f"--config-file={config}",
                f"--port={port}",
                f"--shard-index={index}",
                f"--num-shards={len(machines)}",
                f"--group-address={address}",
                f"--checkpoint-dir={machine / 'reverb'}",
                "--checkpoint-on-stop",
            )
            programs.append(stack.enter_context(Program(COMMAND, *options)))
        for program in programs:
            assert re.search(r"is ready on port \d+", program.line())
        yield reverb.Client(address)
        for program in programs:
            program.signal(signal.SIGTERM)
        for program in programs:
            assert program.ended() == 0, program.errors


def machines(tmp_path, count):
    paths = [tmp_path / f"machine {index}" for index in range(count)]
    for path in paths:
        path.mkdir(exist_ok=True)
    return paths


def contents(client):
    """All items of the prioritized table: key, priority, times sampled, data."""
    found = {}
    for sample in client.scan("t"):
        info = sample.info
        data = np.ravel(sample.data[0]).tolist()
        found[int(info.key)] = (info.priority, int(info.times_sampled), data)
    return found


def test_the_steps_of_the_docs_lose_nothing(tmp_path, config, capsys):
    for step in ("reverb reshard --shards 3", "mv /var/lib/reverb ", "cp -r new/shard-0 "):
        assert step in DOCS.read_text(encoding="utf-8")
    old, new = tmp_path / "old", tmp_path / "new"
    with group(machines(tmp_path, 2), config) as client:
        for number in range(120):
            client.insert([np.float32(number)], {"t": 1.0 + number})
        for number in range(20):
            client.insert([np.int64(number)], {"queue": 1.0})
        client.sample_batch("t", 64)
        before = contents(client)
        assert len(before) == 120
    for index, machine in enumerate(machines(tmp_path, 2)):
        shutil.copytree(machine / "reverb", old / f"shard-{index}")
    arguments = ["--shards", "3", "--config-file", str(config), str(old), str(new)]
    assert command.main(["reshard", "--no-progress", *arguments]) == 0
    assert "140 items of 2 shards" in capsys.readouterr().out
    for index, machine in enumerate(machines(tmp_path, 3)):
        if (machine / "reverb").exists():
            (machine / "reverb").rename(machine / "before")
        shutil.copytree(new / f"shard-{index}", machine / "reverb")
    with group(machines(tmp_path, 3), config) as client:
        assert contents(client) == before
        wait_until(lambda: len(client.shard_info()) == 3)
        client.update_priorities("t", np.array(list(before), np.uint64), np.full(120, 3.0))
        assert client.updates_missed == 0
        assert client.sample_batch("t", 32, timeout_ms=20_000).info.table_size[0] == 120
        read = client.sample_batch("queue", 20, timeout_ms=20_000).data[0]
        assert sorted(np.ravel(read).tolist()) == list(range(20))
        # The room of the queue is there, and what the limiter allows moves between the shards.
        for number in range(50):
            client.insert([np.int64(number)], {"queue": 1.0})
        assert client.server_info()["queue"].current_size == 50
