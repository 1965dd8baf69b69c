# SPDX-License-Identifier: Apache-2.0
"""Each command at a server, and at a group of three with one shard, in each state.

A row has the exit code and a part of what is printed. No command takes longer than `SOON_S`; on a
machine that is idle they end within 3 s.
"""

import contextlib
import json
import re
import signal

import numpy as np
import pytest

import reverb
from support.certificates import Certificates, TokensFile
from support.commands import commands_of_servers, positional, write_dataset
from support.frozen_servers import CONFIG
from support.programs import Program
from support.reverb_server import COMMAND
from support.rolling_restart import free_ports
from support.waiting import DEADLINE_S, PATIENCE

SOON_S = 9.0 * PATIENCE
RIGHTS = "admin,sample,insert,update"

TABLE = ["--table=t"]
EXPORT = [*TABLE, "--format=npz", "--no-progress", "--overwrite"]
COMMANDS = {
    "why": [],
    "top": ["--once"],
    "inspect": ["--no-progress"],
    "configure": [*TABLE, "--max-size=300"],
    "pause": TABLE,
    "resume": TABLE,
    "reset": [*TABLE, "--yes"],
    "checkpoint": [],
    "export": [*EXPORT, "--output=all"],
    "export --partial": [*EXPORT, "--output=some"],
    "import": [*TABLE, "--items=transitions", "--no-resume", "--no-progress"],
    # These two end streams for good, so they are the last ones.
    "drain --shard 1": ["--timeout=1"],
    "drain": ["--timeout=1"],
}
ONLY_IN_GROUPS = {"export --partial", "drain --shard 1"}
READS = ("why", "top", "inspect", "export", "export --partial")

WELL = {
    "why": (0, "checkpoints: None was saved yet."),
    "top": (0, "Rate limiter"),
    "inspect": (0, "of 3,000 items"),
    "configure": (0, "max_size of table t is 300 now, not 3000"),
    "pause": (0, "inserts and samples of table t are paused"),
    "resume": (0, "inserts and samples of table t continue"),
    "reset": (0, "is empty: it had "),
    "checkpoint": (0, "saved SAVED/"),
    "export": (0, "items of table t in "),
    "export --partial": (0, "items of table t in "),
    "import": (0, "3 items of 1 episodes (3 steps) written to table t"),
    "drain --shard 1": (0, "shard 1 (PLACE) is drained: all streams have ended"),
    "drain": (0, "is drained: all streams have ended"),
}


def each(code, text):
    """The same row for all commands."""
    return dict.fromkeys(COMMANDS, (code, text))


PAUSED_BY = "Inserts and samples are paused by .*; .* resume_table resumes them."
PAUSED = {
    **WELL,
    "why": (0, f"t  paused  {PAUSED_BY}"),
    "top": (0, f"t      paused  {PAUSED_BY}"),
}
# The texts of calls that wait there.
PAUSED_CALLS = {
    "sample": "Samples of table t are paused by .*; resume_table resumes them.",
    "flush": f"Table t is paused: {PAUSED_BY}",
}
FROZEN = "The server at PLACE does not answer (no answer within 2 s)"
DEAD = (
    "No server answered at PLACE for 2.5 s. Check the address and that the server runs, or raise "
)
REFUSED = "No server could be reached at PLACE: Connection refused"
UNKNOWN = "This server does not know this token (rvb_"
NO_SAMPLES = "token weak may not sample from any table; it may update."
NO_CHANGES = "token weak may not administer a"
# The others of a group go on.
MISSING = "Shard 1 (PLACE) does not answer, so its items are missing"
SHOWN = {
    "why": (5, f"t  shard down  {MISSING}; 2 of 3 shards continue. Without it: "),
    "top": (5, f"t      shard down  {MISSING}; 2 of 3 shards continue."),
    "inspect": (5, f"{MISSING}.\n"),
    "export": (1, f"{MISSING}: export the items of the others with --partial"),
    "export --partial": (5, f"20 items of table t in .*{MISSING}."),
}
ABSENT = "shard 1 (PLACE): it does not answer (.*)"
OTHERS = "shard 0 (.*), shard 2 (.*); not done: shard 1 (PLACE)."
WITHOUT_ONE = {
    **each(1, f"{ABSENT}, so nothing was changed at any shard."),
    **SHOWN,
    "checkpoint": (5, f"{ABSENT}. 2 of 3 shards saved: {OTHERS}"),
    "drain --shard 1": (1, FROZEN),
    "drain": (5, f"{ABSENT}. 2 of 3 shards drain: {OTHERS}"),
}
# State of the server, or of a shard of a group -> rows.
SINGLE = {
    "well": WELL,
    "paused": PAUSED,
    "frozen": each(1, FROZEN),
    # These two are not repeated.
    "dead": each(1, DEAD) | {"checkpoint": (1, REFUSED), "drain": (1, REFUSED)},
    "unknown token": each(1, UNKNOWN),
    "no right": each(1, NO_CHANGES) | {name: (1, NO_SAMPLES) for name in READS},
}
OF_SHARD = "shard 1 (PLACE): .*"
GROUP = {
    "well": WELL,
    "paused": PAUSED,
    "frozen": WITHOUT_ONE,
    "dead": WITHOUT_ONE | {"drain --shard 1": (1, REFUSED)},
    # Going on would hide a shard that is there.
    "unknown token": each(1, f"Shard BARE_PLACE: {UNKNOWN}"),
    "no right": {
        **each(1, f"{OF_SHARD}{NO_CHANGES}"),
        **{name: (1, f"{OF_SHARD}{NO_SAMPLES}") for name in READS},
        "pause": (1, f"{OF_SHARD}{NO_CHANGES}.* No shard was changed, or it was set back."),
        "reset": (5, f"{OF_SHARD}{NO_CHANGES}.* 2 of 3 shards reset the table: {OTHERS}"),
        "checkpoint": (5, f"{OF_SHARD}{NO_CHANGES}.* 2 of 3 shards saved: {OTHERS}"),
        "drain --shard 1": (1, NO_CHANGES),
        "drain": (5, f"{OF_SHARD}{NO_CHANGES}.* 2 of 3 shards drain: {OTHERS}"),
    },
}

# Runs commands, each in a process of its own, those of a list at the same time. Prints their exit
# codes, how long they took, and what they printed.
RUNNER = """
import json
import os
import sys
import tempfile
import time

from reverb import command

os.chdir(sys.argv[1])
for line in sys.stdin:
    running = {}
    for arguments in json.loads(line):
        printed = tempfile.TemporaryFile("w+")
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            code = 99
            try:
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                code = command.main(arguments)
            finally:
                os._exit(code)
        running[pid] = len(running), began, printed
    done = {}
    while running:
        pid, status = os.wait()
        number, began, printed = running.pop(pid)
        seconds = time.monotonic() - began
        printed.seek(0)
        done[number] = os.waitstatus_to_exitcode(status), seconds, printed.read()
    print(json.dumps([done[number] for number in sorted(done)]))
"""


class Servers:
    """A server, or a group of three, with TLS and tokens. `special` is the one in a state."""

    def __init__(self, stack, directory, certificates, num_servers):
        self.directory = directory
        self.special = min(1, num_servers - 1)
        self._pair, self._ca = certificates.good(), certificates.ca
        tokens, others = TokensFile(directory / "special"), TokensFile(directory / "others")
        for name, rights in (("good", RIGHTS), ("weak", "update"), ("stranger", None)):
            made = {RIGHTS: tokens.add(name, rights) if rights else others.add(name, RIGHTS)}
            path = directory / f"{name}.token"
            path.touch(mode=0o600)
            path.write_text(made[RIGHTS])
            if rights:
                others._lines[made[RIGHTS]] = tokens._lines[made[RIGHTS]].replace(rights, RIGHTS)
        others.write()
        ports = free_ports(num_servers)
        self.places = [f"localhost:{port}" for port in ports]
        self.address = f"grpcs://{self.places[0]}"
        if num_servers > 1:
            self.address = f"shards+grpcs:///{','.join(self.places)}"
        self.programs = []
        for index, port in enumerate(ports):
            options = [
                f"--port={port}",
                f"--tls-cert={self._pair.cert}",
                f"--tls-key={self._pair.key}",
                f"--tokens={tokens.path if index == self.special else others.path}",
                f"--checkpoint-dir={directory}/saved/{index}",
            ]
            if num_servers > 1:
                options += [f"--shard-index={index}", f"--num-shards={num_servers}"]
            program = Program(COMMAND, f"--config={CONFIG}", *options)
            self.programs.append(stack.enter_context(program))
        for program, place in zip(self.programs, self.places, strict=True):
            assert " is ready on port " in program.line()
            with self.client(f"grpcs://{place}") as client:
                client.insert_batch({"x": np.zeros((10, 2))}, {"t": np.ones(10)})

    def client(self, address):
        """A client with all rights."""
        tls = reverb.ClientTls(ca=self._ca)
        return reverb.Client(address, token_file=self.directory / "good.token", tls=tls)

    def arguments(self, name, token):
        """The command line of a row."""
        first, *more = name.split()
        options = [f"--tls-ca={self._ca}", f"--token-file={self.directory / token}.token"]
        return [first, *positional(first, self.address), *more, *COMMANDS[name], *options]

    def pattern(self, text):
        """A regular expression for a text of a row, in which `.*` is anything."""
        place = self.places[self.special]
        text = re.escape(text.replace(".*", "ANYTHING")).replace("ANYTHING", ".*")
        text = text.replace("BARE_PLACE", re.escape(place))
        text = text.replace("SAVED", re.escape(f"{self.directory}/saved"))
        return text.replace("PLACE", f"(grpcs://)?{re.escape(place)}")


def errors_of(client):
    """The texts of a sample and of a flush that wait in vain."""
    texts = {}
    with client.trajectory_writer(1) as writer:
        writer.append({"x": np.zeros(2)})
        writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
        calls = {
            "sample": lambda: client.sample_batch("t", 1, timeout_ms=100),
            "flush": lambda: writer.flush(timeout_ms=100),
        }
        for name, call in calls.items():
            with pytest.raises(reverb.DeadlineExceededError) as caught:
                call()
            texts[name] = str(caught.value)
        client.resume_table("t")
        writer.flush()
        client.pause_table("t")
    return texts


TOKENS = {"unknown token": "stranger", "no right": "weak"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs command lines at the same time: `[(code, seconds, printed), ...]`."""
    directory = tmp_path_factory.mktemp("commands")
    write_dataset(directory)
    with Program(RUNNER, directory) as program:

        def run(lines):
            program.tell(json.dumps(lines))
            return json.loads(program.line(2 * DEADLINE_S))

        yield run


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_the_table_has_every_command():
    assert {name.split()[0] for name in COMMANDS} == commands_of_servers()


# `test_change_commands.py` has short rows of the one that is slow.
@pytest.mark.parametrize(
    ("num_servers", "state"),
    [(1, it) for it in SINGLE if it != "dead"]
    + [pytest.param(1, "dead", marks=pytest.mark.slow)]
    + [(3, it) for it in GROUP],
)
def test_commands_at(num_servers, state, run, certificates, tmp_path):
    rows = (GROUP if num_servers > 1 else SINGLE)[state]
    names = [name for name in COMMANDS if num_servers > 1 or name not in ONLY_IN_GROUPS]
    with contextlib.ExitStack() as stack:
        servers = Servers(stack, tmp_path, certificates, num_servers)
        victim = servers.programs[servers.special]
        if state == "dead":
            victim.kill()
        if state == "frozen":
            victim.signal(signal.SIGSTOP)
        if state == "paused":
            with servers.client(servers.address) as client:
                client.pause_table("t")
                for name, text in errors_of(client).items():
                    assert re.search(servers.pattern(PAUSED_CALLS[name]), text), text
        # Where they change something they run one after another, and a drain is the last.
        steps = [[name] for name in names] if rows["pause"][0] == 0 else [names[:-1], names[-1:]]
        wrong = []
        for step in steps:
            lines = [servers.arguments(name, TOKENS.get(state, "good")) for name in step]
            for name, (code, seconds, printed) in zip(step, run(lines), strict=True):
                wanted, text = rows[name]
                is_said = re.search(servers.pattern(text), printed, re.DOTALL)
                if code != wanted or not is_said or seconds > SOON_S:
                    wrong.append(f"{name}: {code} after {seconds:.1f} s, not {wanted} and {text}:")
                    wrong.append(printed)
        assert not wrong, "\n".join(wrong)
