# SPDX-License-Identifier: Apache-2.0
"""Feeders, generators, learners and servers that are killed at any moment, and replaced.

What was confirmed to a process is known outside of the server. It is compared with what other
processes get, and in the end with the model.
"""

import json
import random
import threading
import time

import pytest

import reverb
from support import rollout_log, rollout_processes, rollout_tables
from support.programs import Program
from support.rolling_restart import free_ports
from support.rollout_log import Line
from support.waiting import PATIENCE, wait_until

SOURCE = "from support import rollout_processes; rollout_processes.main()"
LONGEST_PAUSE_S = 25 * PATIENCE
PROGRESS = {"inserted", "taken", "added"}
# What is killed in a round, in any order; any of the generators.
ROUND = ("server", "server", "learner", "feeder", "generator")


class Run:
    """All processes, the kills, and the checkpoints of the server."""

    def __init__(self, directory, seed):
        self.directory, self.random = directory, random.Random(seed)
        self.log = rollout_processes.Log(directory, "test")
        self.programs, self.address = {}, f"localhost:{free_ports(1)[0]}"
        self.is_over = threading.Event()

    def __enter__(self):
        self.start("server")
        self.client = reverb.Client(self.address)
        for role in rollout_processes.ROLES:
            if role != "server":
                self.start(role)
        self.saver = threading.Thread(target=self.save_again_and_again)
        self.saver.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.saver.join()
        self.client.close()
        for program in self.programs.values():
            program.__exit__()

    def start(self, role):
        begin = time.monotonic()
        place = self.address.rpartition(":")[2] if role == "server" else self.address
        program = self.programs[role] = Program(SOURCE, role, self.directory, place)
        if role == "server":
            assert self.address == f"localhost:{program.line()}"
        self.log.write("started", begin, who=f"{role} {program.pid}")

    def kill(self, role):
        program, begin = self.programs[role], time.monotonic()
        assert program.is_running, f"{role} has ended: {program.errors}"
        program.kill()
        self.log.write("killed", begin, who=f"{role} {program.pid}")
        program.__exit__()
        assert program.errors == "", f"{role}: {program.errors}"

    def save_again_and_again(self):
        moments = random.Random(self.random.random())
        while not self.is_over.wait(moments.uniform(0, 0.5)):
            begin = time.monotonic()
            try:
                self.client.checkpoint()
            except reverb.errors.ReverbError:
                continue  # The server was killed.
            self.log.write("saved", begin)

    def kill_some(self, roles):
        """Kills processes at random moments, until each of them was killed; starts others."""
        for role in self.random.sample(roles, len(roles)):
            # Mostly in the midst of all work, and sometimes while others come back.
            time.sleep(min(2, self.random.expovariate(2)))
            number = self.random.randrange(4)
            chosen = f"generator-{number}" if role == "generator" else role
            self.kill(chosen)
            self.start(chosen)

    def wait_for_progress(self):
        """Waits until each process goes on."""
        log, roles = self.directory / "log", set(rollout_processes.ROLES) - {"server"}
        begin, offset = time.monotonic(), log.stat().st_size

        def have_gone_on():
            lines = [line for line in rollout_log.read(log, offset) if line.begin > begin]
            found = {line.who.split()[0] for line in lines if line.kind in PROGRESS}
            return found >= roles

        wait_until(have_gone_on, LONGEST_PAUSE_S)

    def check_books(self):
        """All items that were inserted are there, or were acked."""
        table = self.client.status().tables["train"]
        assert table.inserts == table.items + table.samples
        assert table.removed.total == table.removed.sampled_out

    def end(self):
        """Trains on all that is there; returns the newest prompt."""
        self.log.write("ends", time.monotonic())
        self.programs.pop("feeder").__exit__()
        wait_until(lambda: self.client.size("train") == 0, LONGEST_PAUSE_S)
        self.check_books()
        for role, program in self.programs.items():
            assert program.is_running, role
            assert program.errors == "", role
        return int(rollout_tables.info(self.client).newest)


def kill_again_and_again(directory, num_rounds, seed):
    """Kills five processes a round; returns all that was written down."""
    with Run(directory, seed) as run:
        for _ in range(num_rounds):
            run.kill_some(ROUND)
            run.wait_for_progress()
            run.check_books()
        newest = run.end()
    lines = rollout_log.read(directory / "log")
    assert rollout_log.violations(lines) == []
    trained = json.loads((directory / "model").read_text())["trained"]
    assert rollout_log.skipped(trained, newest) == []
    assert rollout_log.longest_pause(lines)[0] <= LONGEST_PAUSE_S
    return lines


@pytest.mark.timeout(150)
def test_five_kills_lose_nothing_that_was_confirmed(tmp_path):
    kill_again_and_again(tmp_path, 1, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_fifty_kills_lose_nothing_that_was_confirmed(seed, tmp_path):
    begin = time.monotonic()
    lines = kill_again_and_again(tmp_path, 10, seed)
    kinds = [(line.kind, *line.values[2:3]) for line in lines if line.kind != "taken"]
    pause, role = rollout_log.longest_pause(lines)
    print(
        f"seed {seed}: {kinds.count(('killed',))} kills in {time.monotonic() - begin:.0f} s; "
        f"{kinds.count(('inserted',))} prompts and {kinds.count(('added', 'final'))} rollouts "
        f"confirmed, {rollout_log.trained_again(lines)} items trained again, longest pause "
        f"{pause:.1f} s ({role})"
    )


KILLED, SAVED = ("killed",), ("saved",)
SENDS, ADDED = ("sends", 7, 0, "final", "a"), ("added", 7, 0, "final", "a")
TAKEN, OTHER = ("taken", [7], ["3"], [[[0, "a"]]]), ("taken", [7], ["3"], [[[0, "b"]]])
PARTIAL, ACKED = ("added", 7, 0, "partial", "a"), ("acked", [7])
# What was confirmed, and what breaks it.
ROWS = {
    "a prompt comes twice": ([("inserted", 3)], [("inserted", 3)]),
    "an acked item comes again": ([SENDS, TAKEN, ACKED], [TAKEN]),
    "a final rollout is missing": ([ADDED], [("opened", 7, [0], [0])]),
    "a partial rollout is missing": ([PARTIAL], [("opened", 7, [0], [])]),
    "a rollout is another one": ([SENDS, ADDED], [(*SENDS[:4], "b"), OTHER]),
}


def violations(rows):
    """Checks a log in which one thing happens after the other."""
    lines = [
        Line(kind, "server", at, at + 0.5, tuple(values)) for at, (kind, *values) in enumerate(rows)
    ]
    return rollout_log.violations(lines)


@pytest.mark.parametrize("what", ROWS)
class TestLog:
    def test_what_was_confirmed_must_stay(self, what):
        before, after = ROWS[what]
        assert len(violations([*before, *after])) == 1

    def test_a_killed_server_may_go_back(self, what):
        before, after = ROWS[what]
        assert violations([SAVED, *before, KILLED, *after]) == []

    def test_but_to_no_older_checkpoint_than_its_latest(self, what):
        before, after = ROWS[what]
        assert len(violations([*before, SAVED, KILLED, *after])) == 1


def test_an_item_has_the_rollouts_that_were_sent():
    assert violations([SENDS, TAKEN]) == []
    assert len(violations([SENDS, OTHER])) == 1
    assert len(violations([SENDS, ("taken", [7], ["3"], [[]])])) == 1


def test_an_ack_counts_also_where_the_item_is_open_again():
    before = [("inserted", 3), SAVED, SENDS, ADDED, TAKEN, KILLED, ACKED]
    assert len(violations([*before, TAKEN])) == 1


def test_what_was_under_way_at_a_kill_may_be_lost():
    rows = [("inserted", 0.0, 2.0, [3]), ("killed", 1.0, 1.1, []), ("inserted", 3.0, 4.0, [3])]
    lines = [Line(kind, "server", begin, end, tuple(values)) for kind, begin, end, values in rows]
    assert rollout_log.violations(lines) == []
