# SPDX-License-Identifier: Apache-2.0
"""The job script for Slurm, with a `srun` and a `scontrol` that know this machine alone."""

import contextlib
import json
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
from support.deployment import DEPLOY, FLAGS
from support.reverb_server import COMMAND, CONFIG
from support.rolling_restart import free_ports
from support.waiting import DEADLINE_S, wait_until

SCRIPT = DEPLOY / "slurm" / "replay.sbatch"
# Those of `sbatch --help` that the script uses.
DIRECTIVES = {
    "job-name": r"\w+",
    "nodes": r"\d+",
    "ntasks-per-node": "1",
    "cpus-per-task": r"\d+",
    "mem": r"\d+G",
    "time": r"\d+:\d\d:\d\d",
    "signal": r"TERM@\d+",
    "no-kill": "",
}
# The options of `srun` that the script uses.
STEP = {"--nodes", "--ntasks", "--nodelist", "--cpus-per-task"}

# Runs the command of a step, whose options have to be known. As `srun` does, it ends with the code
# of the command, or 128 and the number of the signal that has killed it.
SRUN = f"""#!{sys.executable}
import json
import os
import pathlib
import subprocess
import sys

options = {{}}
words = sys.argv[1:]
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    assert name in {STEP!r}, name
    options[name] = value
process = subprocess.Popen(words)
told = {{"options": options, "command": words, "pid": process.pid}}
log = pathlib.Path(os.environ["FAKE_LOG"])
with log.open("a") as file:
    file.write(json.dumps(told) + "\\n")
code = process.wait()
sys.exit(code if code >= 0 else 128 - code)
"""
SCONTROL = """#!/bin/bash
[ "$1 $2 $3" = "show hostnames node[1-2]" ] || exit 1
printf '%s\\n' 127.0.0.1 localhost
"""
REVERB_SERVER = f"#!{sys.executable}\n{COMMAND}"


@pytest.fixture(autouse=True)
def _bash():
    if shutil.which("bash") is None:
        pytest.skip("bash is missing")


def neighbours() -> list[int]:
    """Two ports that nobody listens on, one after the other."""
    while True:
        (first,) = free_ports(1)
        with contextlib.suppress(OSError, OverflowError), socket.socket() as second:
            second.bind(("127.0.0.1", first + 1))
            return [first, first + 1]


class Job:
    """A job on two nodes, both of which are this machine."""

    def __init__(self, directory: pathlib.Path, config: str = CONFIG, **variables: str) -> None:
        self._log = directory / "steps"
        self._log.touch()
        programs = directory / "bin"
        programs.mkdir()
        for name, text in (
            ("srun", SRUN),
            ("scontrol", SCONTROL),
            ("reverb_server", REVERB_SERVER),
        ):
            path = programs / name
            path.write_text(text)
            path.chmod(0o755)
        (directory / "server.textproto").write_text(config)
        self.directory = directory / "replay"
        self.ports = neighbours()
        environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "FAKE_LOG": str(self._log),
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_SUBMIT_DIR": str(directory),
            "SLURM_CPUS_PER_TASK": "3",
            "REPLAY_PORT": str(self.ports[0]),
            **variables,
        }
        self.process = subprocess.Popen(
            ["bash", str(SCRIPT)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def steps(self) -> list[dict]:
        """The arguments of `srun` so far."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def address(self) -> str:
        """The address in the file that is there for clients."""
        path = self.directory / "address"
        wait_until(lambda: path.exists() or self.process.poll() is not None)
        return path.read_text().strip()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to all steps, as `scancel --signal` does."""
        for step in self.steps()[-2:]:
            os.kill(step["pid"], number)

    def ended(self, deadline_s: float = DEADLINE_S) -> tuple[int, str]:
        """Waits for the end of the job; returns its code and what it has printed."""
        out, _ = self.process.communicate(timeout=deadline_s)
        return self.process.returncode, out

    def close(self) -> None:
        """Ends everything on the spot."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if not self.process.stdout.closed:
            self.process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def start(tmp_path):
    jobs = []

    def start(**options):
        jobs.append(Job(tmp_path, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def values(client):
    return sorted(int(sample.data[0][0]) for sample in client.scan("t"))


def insert(client, count):
    """In several calls, because each goes to one shard."""
    for part in np.array_split(np.arange(count), 4):
        client.insert_batch([part], {"t": 1.0})


def text():
    return SCRIPT.read_text(encoding="utf-8")


def is_good(script):
    return subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_bash_can_read_it_and_finds_a_typo():
    assert is_good(text())
    for part, typo in (("esac", "esca"), ("done\n", "don\n"), ('"$config"', '"$config')):
        assert part in text()
        assert not is_good(text().replace(part, typo, 1)), typo


def unknown_words(script):
    """Unknown words of the script: directives, options of steps and of servers."""
    found = set()
    for name, value in re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.MULTILINE):
        if not re.fullmatch(DIRECTIVES.get(name, "(?!)"), value):
            found.add(name)
    # The loop of a shard has one command, of several lines.
    command = re.search(r"^ +srun (.*?)\|\|", script.replace("\\\n", " "), re.MULTILINE)[1]
    step, server = command.split(" reverb_server ")
    found |= set(re.findall(r"--[\w-]+", step)) - STEP
    return found | set(re.findall(r"--[\w-]+", server)) - FLAGS


@pytest.mark.parametrize(
    ("part", "typo"),
    [
        ("--ntasks-per-node=1", "--ntask-per-node=1"),
        ("#SBATCH --mem=64G", "#SBATCH --mem=64 G"),
        ("--nodelist=", "--nodeslist="),
        ("--shard-index=", "--shard="),
        ("--checkpoint-on-stop", "--checkpoint-at-stop"),
    ],
)
def test_every_option_is_known_and_a_typo_is_not(part, typo):
    assert unknown_words(text()) == set()
    assert part in text()
    assert unknown_words(text().replace(part, typo, 1))


def test_a_job_is_a_group_and_the_next_one_has_its_items(start, tmp_path):
    job = start()
    address = job.address()
    assert address == f"shards:///127.0.0.1:{job.ports[0]},localhost:{job.ports[1]}"
    client = reverb.Client(address, connect_timeout_s=DEADLINE_S)
    insert(client, 16)
    assert values(client) == list(range(16))
    assert all(it.tables["t"].size for it in client.shard_info())
    steps = sorted(job.steps(), key=lambda it: it["options"]["--nodelist"])
    assert [it["options"]["--nodelist"] for it in steps] == ["127.0.0.1", "localhost"]
    assert {it["options"]["--cpus-per-task"] for it in steps} == {"3"}
    job.signal(signal.SIGTERM)
    code, out = job.ended()
    assert code == 0, out
    assert f"clients write {address}" in out
    assert not (job.directory / "address").exists()
    assert {it.name for it in job.directory.iterdir()} == {"shard-0", "shard-1"}
    (tmp_path / "bin").rename(tmp_path / "old")
    (tmp_path / "steps").unlink()
    client = reverb.Client(start().address(), connect_timeout_s=DEADLINE_S)
    wait_until(lambda: values(client) == list(range(16)))


@pytest.mark.parametrize("has_store", [False, True])
def test_a_server_that_crashes_starts_again(start, tmp_path, has_store):
    store = {"REPLAY_STORE": str(tmp_path / "local disk")} if has_store else {}
    job = start(**store)
    client = reverb.Client(job.address(), connect_timeout_s=DEADLINE_S)
    insert(client, 16)
    if has_store:
        client.sync()
    else:
        client.checkpoint()
    crashed = job.steps()[0]
    os.kill(crashed["pid"], signal.SIGKILL)
    wait_until(lambda: len(job.steps()) == 3)
    assert job.steps()[2]["command"] == crashed["command"]
    wait_until(lambda: values(client) == list(range(16)))
    job.signal(signal.SIGTERM)
    code, out = job.ended()
    assert code == 0, out
    assert re.search(r"shard \d on \S+ has ended with 137 and starts again", out)


def test_a_bad_config_ends_the_job(start):
    job = start(config="tables: {")
    code, out = job.ended()
    assert code == 2
    assert "shard 0 cannot run with its options" in out


@pytest.mark.timeout(150)
def test_a_server_whose_start_is_refused_stays_down(start, tmp_path):
    """Otherwise the job would try for ever, and nobody would look."""
    disk = tmp_path / "local disk"
    job = start(REPLAY_STORE=str(disk))
    insert(reverb.Client(job.address(), connect_timeout_s=DEADLINE_S), 16)
    job.signal(signal.SIGTERM)
    assert job.ended()[0] == 0
    (disk / "shard-0").rename(disk / "kept")
    (disk / "shard-1").rename(disk / "shard-0")
    (disk / "kept").rename(disk / "shard-1")
    (tmp_path / "bin").rename(tmp_path / "old")
    (tmp_path / "steps").unlink()
    job = start(REPLAY_STORE=str(disk))
    code, out = job.ended(3 * DEADLINE_S)
    assert code == 1, out
    assert len(job.steps()) == 6
    for index in range(2):
        assert re.search(rf"shard {index} has ended with 1, .* stays down", out)
