# SPDX-License-Identifier: Apache-2.0
"""A day in the life of a group that was started by hand, with the commands that an operator has.

It is filled, watched, paused; a shard freezes, another one is killed and comes back; the group is
made from four shards into three and into six, drained and restarted. No confirmed item is lost.
"""

import contextlib
import re
import shutil
import signal
import sys
import time

import numpy as np
import pytest

import reverb
from reverb import command
from support.programs import Program
from support.reverb_server import COMMAND
from support.rolling_restart import free_ports
from support.waiting import DEADLINE_S, wait_until

CONFIG = """
tables: {
  table_name: "replay"
  sampler: { prioritized: { priority_exponent: 1 } }
  remover: { fifo: true }
  max_size: 100000
  rate_limiter: { min_size_to_sample: 10 samples_per_insert: 1 min_diff: -1e300 max_diff: 1e300 }
}
"""
NUM_ITEMS = 3000


class Day:
    """The machines of a group, what runs on them, and a log of what was done."""

    def __init__(self, root, capsys):
        self.root = root
        self.config = root / "tables.textproto"
        self.config.write_text(CONFIG)
        self.log = []
        self._began = time.monotonic()
        self._capsys = capsys
        self.programs = []

    def tell(self, text):
        self.log.append(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def start(self, stack, count):
        """Starts so many shards, each on a machine of its own, from what lies there."""
        self.ports = free_ports(count)
        self.address = "shards:///" + ",".join(f"localhost:{port}" for port in self.ports)
        self.programs = [None] * count
        for index in range(count):
            self.start_one(stack, index)
        for index in range(count):
            self.wait_for(index)
        self.client = reverb.Client(self.address, connect_timeout_s=DEADLINE_S)
        wait_until(lambda: self.why() == 0, DEADLINE_S)
        self.tell(f"{count} shards run")

    def start_one(self, stack, index):
        options = (
            f"--config-file={self.config}",
            f"--port={self.ports[index]}",
            f"--shard-index={index}",
            f"--num-shards={len(self.ports)}",
            f"--group-address={self.address}",
            f"--checkpoint-dir={self.root / f'machine {index}'}",
            "--checkpoint-on-stop",
        )
        self.programs[index] = stack.enter_context(Program(COMMAND, *options))

    def wait_for(self, index):
        assert re.search(r"is ready on port \d+", self.programs[index].line())

    def run(self, name, *options, expected=0):
        """Runs a command on the group; returns what it prints."""
        began = time.monotonic()
        self._capsys.readouterr()
        code = command.main([name, self.address, *options])
        out, err = self._capsys.readouterr()
        took = time.monotonic() - began
        told = (out or err).strip().splitlines()
        self.tell(f"reverb {name} {' '.join(options)}: {code} after {took:.1f} s: {told[0][:150]}")
        assert code == expected, (out, err)
        return (out + err).lower()

    def why(self):
        self._capsys.readouterr()
        code = command.main(["why", self.address])
        self._capsys.readouterr()
        return code

    def contents(self):
        found = {}
        for sample in self.client.scan("replay"):
            info = sample.info
            found[int(info.key)] = (info.priority, int(np.ravel(sample.data[0])[0]))
        return found

    def stop(self):
        for program in self.programs:
            program.signal(signal.SIGTERM)
        for program in self.programs:
            assert program.ended() == 0, program.errors
        self.tell(f"{len(self.programs)} shards stopped and saved")

    def reshard(self, before, after):
        old, new = self.root / f"of {before}", self.root / f"new {after}"
        for index in range(before):
            shutil.copytree(self.root / f"machine {index}", old / f"shard-{index}")
            shutil.rmtree(self.root / f"machine {index}")
        arguments = ["--shards", f"{after}", "--config-file", f"{self.config}", f"{old}", f"{new}"]
        self._capsys.readouterr()
        assert command.main(["reshard", "--no-progress", *arguments]) == 0
        self.tell(f"reverb reshard --shards {after}: {self._capsys.readouterr().out.strip()[:150]}")
        for index in range(after):
            shutil.copytree(new / f"shard-{index}", self.root / f"machine {index}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_day_in_the_life_of_a_group(tmp_path, capsys):
    day = Day(tmp_path, capsys)
    with contextlib.ExitStack() as stack:
        day.start(stack, 4)
        # Writers that begin together are spread over the shards.
        writers = [stack.enter_context(day.client.trajectory_writer(1)) for _ in range(4)]
        for number in range(NUM_ITEMS):
            writer = writers[number % 4]
            writer.append([np.int64(number)])
            writer.create_item("replay", 1.0 + number % 7, [writer.history[0][-1:]])
            if number % 400 >= 396:
                writer.end_episode()
        for writer in writers:
            writer.flush()
        assert all(shard.tables["replay"].size for shard in day.client.shard_info())
        everything = day.contents()
        assert sorted(value for _, value in everything.values()) == list(range(NUM_ITEMS))
        day.tell(f"{NUM_ITEMS} items are inserted")
        assert "replay" in day.run("why")
        assert "shards" in day.run("top", "--once")
        day.run("pause", "--table", "replay")
        assert "paused" in day.run("why")
        day.run("resume", "--table", "replay")
        day.run("checkpoint")

        day.programs[2].signal(signal.SIGSTOP)
        day.tell("shard 2 is frozen")
        assert "shard 2" in day.run("why", expected=5)
        assert "shard 2" in day.run("pause", "--table", "replay", expected=1)
        assert "shard 2" in day.run("reset", "--table", "replay", "--yes", expected=1)
        day.programs[2].signal(signal.SIGCONT)
        wait_until(lambda: day.why() == 0, DEADLINE_S)
        day.tell("shard 2 goes on")
        assert day.contents() == everything

        day.programs[1].signal(signal.SIGKILL)
        day.programs[1].ended()
        day.tell("shard 1 is killed")
        assert "shard 1" in day.run("why", expected=5)
        assert len(day.client.sample_batch("replay", 64, timeout_ms=15_000).info.key) == 64
        day.tell("a learner goes on with the others")
        day.start_one(stack, 1)
        day.wait_for(1)
        wait_until(lambda: day.why() == 0, DEADLINE_S)
        assert day.contents() == everything
        day.tell("shard 1 is back, with all of its items")
        day.stop()

        for before, after in ((4, 3), (3, 6)):
            day.reshard(before, after)
            day.start(stack, after)
            assert day.contents() == everything
            day.run("inspect", "--no-items")
            if after == 3:
                day.stop()
        assert "drained" in day.run("drain", "--timeout", "30")
        day.stop()
        day.start(stack, 6)
        assert day.contents() == everything
        day.tell("all items are there")
        day.stop()
    print("\n".join(day.log), file=sys.stderr)
