# SPDX-License-Identifier: Apache-2.0
"""The unit for systemd: its command is one of the server, and what it may do is enough."""

import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

import reverb
from reverb.server_executable.options import OPTIONS
from support.deployment import DEPLOY, Unit, arguments, check, flags
from support.waiting import DEADLINE_S

UNIT = DEPLOY / "systemd" / "reverb.service"
CONFIG = DEPLOY / "systemd" / "server.textproto"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="Debian's package systemd is missing"
)


@pytest.fixture(scope="module")
def unit():
    return Unit(UNIT)


def options_of(unit, directory):
    """The arguments of the unit, with the config of this folder and another directory."""
    program, *rest = unit.command()
    assert program == "/opt/reverb/bin/reverb_server"
    values = flags(rest)
    assert values["--config-file"] == "/etc/reverb/server.textproto"
    values["--config-file"] = str(CONFIG)
    for flag, name in (("--store", "store"), ("--checkpoint-dir", "checkpoints")):
        assert values[flag] == f"%S/{unit['StateDirectory']}/{name}"
        values[flag] = str(directory / name)
    return values


def test_its_command_is_one_that_the_server_takes(unit, tmp_path):
    check(arguments(options_of(unit, tmp_path)))


def test_it_waits_for_the_drain_and_the_last_commit(unit, tmp_path):
    values = options_of(unit, tmp_path)
    assert "--no-store-journal" not in values
    assert "--checkpoint-on-stop" not in values, "that would take longer, and a stop loses nothing"
    assert unit.seconds("TimeoutStopSec") >= float(values["--drain-timeout"]) + 60


def test_the_servers_memory_is_a_share_of_the_limit(unit, tmp_path):
    share = re.fullmatch(r"(\d+)%", options_of(unit, tmp_path)["--max-bytes"])[1]
    assert 50 <= int(share) <= 90
    assert re.fullmatch(r"\d+G", unit["MemoryMax"])


def test_it_listens_to_what_the_server_says(unit):
    assert unit["Type"] == "notify"
    assert unit["NotifyAccess"] == "main"
    assert unit["WatchdogSec"] == "1min"
    assert unit["ExecReload"] == "kill -HUP $MAINPID"
    # A config that cannot be used.
    assert unit["RestartPreventExitStatus"] == "2"


def test_its_comments_name_variables_of_options(unit):
    """Credentials are handed to the server by its environment."""
    named = set(re.findall(r"\b(REVERB_SERVER_\w+)=", unit.text))
    assert named == {f"REVERB_SERVER_{it}" for it in ("TLS_CERT", "TLS_KEY", "TOKENS")}
    assert named <= {option.variable for option in OPTIONS}


def systemd_analyze(*arguments):
    done = subprocess.run(
        ["systemd-analyze", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture
def installed(tmp_path):
    """Writes the unit, with a program that is there, and with changes."""

    def installed(**changes):
        text = UNIT.read_text(encoding="utf-8").replace(
            "/opt/reverb/bin/reverb_server", sys.executable
        )
        for name, value in changes.items():
            text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
            assert count
        path = tmp_path / "reverb.service"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return installed


@pytest.mark.debian
@needs_systemd
def test_systemd_accepts_it(installed):
    assert systemd_analyze("verify", installed()) == (0, "")
    # So it would say what it does not know.
    _, told = systemd_analyze("verify", installed(ProtectSystem="very"))
    assert "Failed to parse protect system value" in told


@pytest.mark.debian
@needs_systemd
def test_it_is_locked_down(installed):
    code, told = systemd_analyze("security", "--offline=true", "--threshold=20", installed())
    assert code == 0, told
    found = float(re.search(r"Overall exposure level for reverb.service: ([\d.]+)", told)[1])
    assert 0 < found <= 2.0
    code, told = systemd_analyze(
        "security", "--offline=true", "--threshold=20", installed(CapabilityBoundingSet="~")
    )
    assert code != 0, told


def calls_of(name):
    """The system calls of a set, such as @system-service."""
    code, told = systemd_analyze("syscall-filter", name)
    assert code == 0, told
    calls = set()
    for word in (line.strip() for line in told.splitlines()[1:]):
        if word.startswith("@"):
            calls |= calls_of(word)
        elif word and not word.startswith("#"):
            calls.add(word)
    return calls


def allowed_calls(unit):
    """The system calls that the unit allows: each of its lines adds some or takes some away."""
    allowed = calls_of("@default")
    for value in (value for key, value in unit.settings if key == "SystemCallFilter"):
        names = value.removeprefix("~").split()
        calls = set().union(*(calls_of(it) if it.startswith("@") else {it} for it in names))
        allowed = allowed - calls if value.startswith("~") else allowed | calls
    return allowed


@pytest.mark.debian
@needs_systemd
@pytest.mark.skipif(shutil.which("strace") is None, reason="Debian's package strace is missing")
def test_the_server_makes_only_the_system_calls_that_it_allows(unit, tmp_path):
    """From the start over inserts, samples, a reload and a checkpoint to the stop."""
    values = options_of(unit, tmp_path / "saved") | {"--port": "0", "--http-port": "0"}
    source = "from reverb.server_executable import server_main; server_main.app_run_main()"
    traced = tmp_path / "calls"
    command = ["strace", "-f", "-qq", "-c", "-U", "name", "-o", str(traced)]
    # The shell tells its number, which is the server's then.
    command += ["sh", "-c", 'echo $$; exec "$@"', "sh", sys.executable, "-c", source]
    with subprocess.Popen(
        [*command, *arguments(values)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            number = int(process.stdout.readline())
            port = re.search(r" is ready on port (\d+) of ", process.stdout.readline())[1]
            client = reverb.Client(f"127.0.0.1:{port}", connect_timeout_s=DEADLINE_S)
            client.insert_batch([np.random.rand(2000, 200)], {"replay": 1.0})
            client.sample_batch("replay", 64)
            client.checkpoint()
            subprocess.run(["kill", "-HUP", str(number)], check=True)
            for line in process.stderr:
                if " reloaded " in line:
                    break
                if " at http://" in line:
                    url = line.strip().rpartition(" ")[2]
                    with urllib.request.urlopen(f"{url}metrics", timeout=DEADLINE_S) as answer:
                        assert b"reverb_table_items" in answer.read()
            subprocess.run(["kill", f"-{int(signal.SIGTERM)}", str(number)], check=True)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
    calls = set(re.findall(r"^(\w+)$", traced.read_text().replace(" ", ""), re.MULTILINE))
    calls -= {"syscall", "total"}
    assert {"listen", "fsync", "fdatasync", "mbind"} <= calls
    assert calls <= allowed_calls(unit)
