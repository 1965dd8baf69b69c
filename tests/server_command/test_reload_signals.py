# SPDX-License-Identifier: Apache-2.0
"""SIGHUP at a `reverb_server` that has a config file: it reloads, whenever the signal comes."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from support.log_lines import messages
from support.programs import Program
from support.reverb_server import COMMAND, CONFIG, TERMINAL, client_of
from support.waiting import DEADLINE_S

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no SIGHUP")

# Tells what would change, and changes nothing.
TOLD = """
from reverb.server_executable import reload

def configure_tables(server, changes, *, dry_run):
    if not dry_run:
        # In one piece: the line that says that it is ready comes from another thread.
        sizes = {name: change.max_size for name, change in changes.items()}
        print(f"{sizes}\\n", end="", flush=True)

reload.configure_tables = configure_tables
"""
# A reload that takes as long as the test wants.
SLOW_RELOAD = """
import threading
from reverb.server_executable import reload

may_end = threading.Semaphore(0)

def configure_tables(server, changes, *, dry_run):
    if not dry_run:
        print({name: change.max_size for name, change in changes.items()}, flush=True)
        may_end.acquire()

def listen():
    for line in sys.stdin:
        may_end.release()

import sys
reload.configure_tables = configure_tables
threading.Thread(target=listen, daemon=True).start()
"""
SLOW_START = """
import select
import sys
from reverb.server_executable import server_main

def start(*values, start=server_main.Server, **named):
    print("starting", flush=True)
    # A signal just before a read that blocks would be handled after it only.
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        pass
    sys.stdin.readline()
    return start(*values, **named)

server_main.Server = start
"""
SLOW_STOP = """
import sys
from reverb.server import Server

def stop(self, drain_s, stop=Server.stop):
    print("stopping", flush=True)
    sys.stdin.readline()
    stop(self)
    print("stopped", flush=True)

Server.stop = stop
"""


@contextlib.contextmanager
def running(path, source=TOLD, *options):
    with Program(source + COMMAND, "--config-file", path, "--host=127.0.0.1", *options) as program:
        yield program


def write(path, max_size):
    path.write_text(CONFIG.replace("max_size: 20", f"max_size: {max_size}"))


def change(max_size):
    return f"{{'t': {max_size}}}"


def reloaded(path, max_size):
    return f" INFO server: reloaded {path}: table t: max_size 20 -> {max_size}\n"


def test_a_hangup_reloads_the_file_and_the_server_goes_on(path):
    with running(path) as program:
        client = client_of(program.line())
        client.insert([7], {"t": 1.0})
        for max_size in (30, 40):
            write(path, max_size)
            program.signal(signal.SIGHUP)
            assert program.line() == change(max_size)
            program.wait_for_error(reloaded(path, max_size))
        assert client.server_info()["t"].current_size == 1
        program.stop()
        assert messages(program.errors)[-4:] == [
            reloaded(path, 30).strip(),
            reloaded(path, 40).strip(),
            "INFO server: stopping after SIGTERM",
            "INFO server: stopped",
        ]


def test_a_reload_changes_the_tables_of_the_server(path):
    with running(path, "") as program:
        client = client_of(program.line())
        for value in range(5):
            client.insert([value], {"t": 1.0})
        write(path, 3)
        program.signal(signal.SIGHUP)
        program.wait_for_error(reloaded(path, 3))
        info = client.server_info()["t"]
        assert (info.max_size, info.current_size) == (3, 3)


def test_a_failed_reload_ends_neither_server_nor_later_reloads(path):
    faulty = """
from reverb.server_executable import reload
calls = []
def configure_tables(server, changes, *, dry_run):
    calls.append(changes)
    if len(calls) == 1:
        raise KeyError("a fault")
    print("called again", flush=True)
reload.configure_tables = configure_tables
"""
    with running(path, faulty) as program:
        client = client_of(program.line())
        write(path, 30)
        program.signal(signal.SIGHUP)
        program.wait_for_error("KeyError: 'a fault'")
        program.signal(signal.SIGHUP)
        assert program.line() == "called again"
        assert client.server_info()


def test_a_hangup_while_it_starts_reloads_when_it_has_started(path):
    with running(path, TOLD + SLOW_START) as program:
        assert program.line() == "starting"
        write(path, 30)
        program.signal(signal.SIGHUP)
        program.tell()
        # Threads of their own print them.
        told, ready = sorted((program.line(), program.line()), key=lambda it: "ready" in it)
        assert told == change(30)
        assert client_of(ready).server_info()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_other_signals_while_it_starts_end_it_as_without_a_file(path, number):
    with running(path, TOLD + SLOW_START) as program:
        assert program.line() == "starting"
        program.signal(signal.SIGHUP)
        program.signal(number)
        assert program.ended() == (130 if number == signal.SIGINT else -number)


def test_hangups_while_it_stops_do_nothing(path):
    with running(path, TOLD + SLOW_STOP) as program:
        program.line()
        program.signal(signal.SIGTERM)
        assert program.line() == "stopping"
        write(path, 30)
        program.signal(signal.SIGHUP)
        program.signal(signal.SIGHUP)
        program.tell()
        assert program.line() == "stopped"
        assert program.ended() == 0
        assert "reload" not in program.errors


def test_hangups_during_a_reload_cause_one_more(path):
    with running(path, SLOW_RELOAD) as program:
        program.line()
        write(path, 30)
        program.signal(signal.SIGHUP)
        assert program.line() == change(30)
        write(path, 40)
        for _ in range(5):
            program.signal(signal.SIGHUP)
        write(path, 50)
        program.tell()
        assert program.line() == change(50)
        program.tell()
        program.wait_for_error(reloaded(path, 50))
        program.stop()
        assert program.errors.count(" reloaded ") == 2


def test_a_reload_that_waits_does_not_delay_a_stop(path):
    with running(path, SLOW_RELOAD) as program:
        program.line()
        write(path, 30)
        program.signal(signal.SIGHUP)
        assert program.line() == change(30)
        program.stop()
        assert messages(program.errors)[-2:] == [
            "INFO server: stopping after SIGTERM",
            "INFO server: stopped",
        ]


def test_a_config_of_the_environment_has_nothing_to_reload(path):
    with Program(TOLD + COMMAND, REVERB_SERVER_CONFIG=CONFIG) as program:
        program.line()
        program.signal(signal.SIGHUP)
        assert program.ended() == 0
        assert messages(program.errors)[-2:] == [
            "INFO server: stopping after SIGHUP",
            "INFO server: stopped",
        ]


def test_a_file_that_the_environment_names_is_reloaded(path):
    with Program(TOLD + COMMAND, REVERB_SERVER_CONFIG_FILE=str(path)) as program:
        program.line()
        write(path, 30)
        program.signal(signal.SIGHUP)
        assert program.line() == change(30)


def test_a_config_that_was_a_pipe_cannot_be_read_again(path):
    """As with `--config-file <(make-config)` in a shell."""
    reader, writer = os.pipe()
    os.write(writer, CONFIG.encode())
    os.close(writer)
    command = [sys.executable, "-c", COMMAND, f"--config-file=/dev/fd/{reader}"]
    with subprocess.Popen(
        command, pass_fds=[reader], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(reader)
        try:
            assert client_of(process.stdout.readline()).server_info()
            process.send_signal(signal.SIGHUP)
            assert process.wait(DEADLINE_S) == 0
            assert "INFO server: stopping after SIGHUP" in messages(process.stderr.read())
        finally:
            process.kill()


def test_a_config_in_whose_place_a_pipe_came_is_not_waited_for(path):
    with Program(TOLD + COMMAND, f"--config-file={path}") as program:
        program.line()
        path.unlink()
        os.mkfifo(path)
        program.signal(signal.SIGHUP)
        program.wait_for_error("is not a file")
        path.unlink()
        write(path, 30)
        program.signal(signal.SIGHUP)
        assert program.line() == change(30)


def test_a_config_without_an_end_is_refused():
    with Program(COMMAND, "--config-file=/dev/zero") as program:
        assert program.ended() == 2
        assert "/dev/zero" in program.errors
        assert "is larger than 16777216 bytes" in program.errors


def test_a_server_of_a_file_outlives_its_terminal_and_saves(path, tmp_path, until):
    """Nothing can be written any more, and the reload and the stop try to."""
    saved = tmp_path / "saved"
    options = [f"--config-file={path}", f"--checkpoint-dir={saved}", "--checkpoint-on-stop"]
    told = (
        TOLD
        + f"reload.configure_tables = lambda *_, **named: open({str(tmp_path / 'told')!r}, 'w')\n"
    )
    with Program(TERMINAL, told + COMMAND, *options, REVERB_LOG="info") as program:
        client = client_of(program.line())
        client.insert([7], {"t": 1.0})
        write(path, 30)
        program.tell()
        pid = int(program.line())
        until((tmp_path / "told").exists)
        assert client.server_info()["t"].current_size == 1
        os.kill(pid, signal.SIGTERM)
        assert program.line() == "0"
    assert len(list(saved.glob("*/DONE"))) == 1


def test_the_stop_drains_as_long_as_it_is_told():
    source = """
from reverb.server import Server

def stop(self, drain_s, stop=Server.stop):
    print(drain_s, flush=True)
    stop(self)

Server.stop = stop
"""
    for options, drain_s in (([], "10.0"), (["--drain-timeout=2.5"], "2.5")):
        with Program(source + COMMAND, f"--config={CONFIG}", *options) as program:
            program.line()
            program.signal(signal.SIGTERM)
            assert program.line() == drain_s
            assert program.ended() == 0
