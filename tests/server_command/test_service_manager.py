# SPDX-License-Identifier: Apache-2.0
"""Messages of `reverb_server` to systemd over NOTIFY_SOCKET, which cannot harm the server."""

import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
import types

import pytest

import reverb
from reverb.core import native
from reverb.server_executable import server_life, service_manager
from reverb.server_executable.service_manager import ServiceManager
from support.certificates import TokensFile
from support.log_lines import messages
from support.programs import Program
from support.reverb_server import COMMAND, CONFIG, client_of
from support.waiting import DEADLINE_S, wait_until
from support.wire.raw_http2 import Http2

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "AF_UNIX") or not hasattr(signal, "SIGHUP"),
    reason="the system has no Unix sockets, or no SIGHUP",
)

STARTING = ["STATUS=starting: the tables are loading"]


class NotifySocket:
    """The socket of a service manager, which keeps what it is told."""

    def __init__(self, address):
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(DEADLINE_S)
        self._socket.bind(address.replace("@", "\0", 1) if address[0] == "@" else address)

    def message(self):
        """The lines of the next message; a time is left out."""
        return re.sub(r"(MONOTONIC_USEC=)\d+", r"\1", self.text()).split("\n")

    def text(self):
        """The next message."""
        return self._socket.recv(65536).decode()

    def is_silent(self):
        """Whether no message waits."""
        self._socket.setblocking(False)
        try:
            self._socket.recv(65536, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(DEADLINE_S)
        return False

    def close(self):
        """Ends it; what is sent then is refused."""
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    """A service manager at an address of each kind."""
    if request.param == "abstract" and sys.platform != "linux":
        pytest.skip("abstract sockets are Linux's")
    path = tmp_path / "notify"
    manager = NotifySocket(str(path) if request.param == "path" else f"@reverb-test{path}")
    with contextlib.closing(manager):
        yield manager


@contextlib.contextmanager
def running(path, address, *options, source=COMMAND, **environment):
    options = (f"--config-file={path}", "--host=127.0.0.1", *options)
    with Program(source, *options, NOTIFY_SOCKET=address, **environment) as program:
        yield program


def ready(program):
    """The message that says so, of a server that has printed its line, and no reload yet."""
    port = re.search(r" is ready on port (\d+) of ", program.line())[1]
    program.wait_for_error(" ready on port ")
    (told,) = (it for it in messages(program.errors) if " ready on port " in it)
    assert f" ready on port {port} of 127.0.0.1" in told
    return ["READY=1", f"STATUS={told.removeprefix('INFO server: ')}"]


def stopping(seconds):
    return [
        "STOPPING=1",
        f"EXTEND_TIMEOUT_USEC={round((seconds + 60) * 1e6)}",
        f"STATUS=stopping after SIGTERM: drains for {seconds} s at most",
    ]


def test_a_start_and_a_stop_are_told(manager, path):
    with running(path, manager.address, "--drain-timeout=2.5") as program:
        assert manager.message() == STARTING
        assert manager.message() == ready(program)
        program.signal(signal.SIGTERM)
        assert manager.message() == stopping(2.5)
        assert program.ended() == 0
        assert manager.is_silent()


def test_it_is_not_ready_before_its_tables_are_loaded(manager, path):
    slow = """
import sys
from reverb.server_executable import server_main

def start(*values, start=server_main.Server, **named):
    print("starting", flush=True)
    sys.stdin.readline()
    return start(*values, **named)

server_main.Server = start
"""
    with running(path, manager.address, source=slow + COMMAND) as program:
        assert program.line() == "starting"
        assert manager.message() == STARTING
        assert manager.is_silent()
        program.tell()
        assert manager.message() == ready(program)


def test_a_server_that_cannot_start_is_never_ready(manager, path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(path, manager.address, f"--port={port}") as program:
            assert program.ended() == 1
    assert manager.message() == STARTING
    assert manager.is_silent()


def test_a_reload_is_told_with_its_time_and_its_outcome(manager, path):
    with running(path, manager.address) as program:
        assert manager.message() == STARTING
        began = ready(program)
        assert manager.message() == began
        earliest = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        path.write_text(CONFIG.replace("max_size: 20", "max_size: 30"))
        program.signal(signal.SIGHUP)
        text = manager.text()
        assert text.split("\n")[::2] == ["RELOADING=1", "STATUS=reloading the config"]
        moment = int(re.search(r"^MONOTONIC_USEC=(\d+)$", text, re.MULTILINE)[1])
        assert earliest <= moment <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        outcome = f"reloaded {path}: table t: max_size 20 -> 30"
        assert manager.message() == [began[0], f"{began[1]}; {outcome}"]

        path.write_text("port: 0")
        program.signal(signal.SIGHUP)
        assert manager.message()[0] == "RELOADING=1"
        outcome = f"not reloaded: {path} has 1 problem; nothing has changed"
        # It is ready: it goes on with the settings of before.
        assert manager.message() == [began[0], f"{began[1]}; {outcome}"]


def test_a_fault_in_a_reload_leaves_it_ready(manager, path):
    faulty = """
from reverb.server_executable import server_main
def reload_config(*values):
    raise KeyError("a fault")
server_main.reload_config = reload_config
"""
    with running(path, manager.address, source=faulty + COMMAND) as program:
        assert manager.message() == STARTING
        began = ready(program)
        assert manager.message() == began
        program.signal(signal.SIGHUP)
        assert manager.message()[0] == "RELOADING=1"
        assert manager.message() == [began[0], f"{began[1]}; the reload has failed"]


def test_a_drain_is_told_when_it_begins(manager, path):
    slow = """
import sys
from reverb.server import Server

def stop(self, drain_s, stop=Server.stop):
    print(f"drains for {drain_s}", flush=True)
    sys.stdin.readline()
    stop(self)

Server.stop = stop
"""
    with running(path, manager.address, "--drain-timeout=20", source=slow + COMMAND) as program:
        assert manager.message() == STARTING
        program.line()
        assert manager.message()[0] == "READY=1"
        program.signal(signal.SIGTERM)
        assert program.line() == "drains for 20.0"
        assert manager.message() == stopping(20)
        path.write_text(CONFIG.replace("max_size: 20", "max_size: 30"))
        program.signal(signal.SIGHUP)
        program.tell()
        assert program.ended() == 0
        assert manager.is_silent()


def test_a_reload_that_ends_during_the_stop_is_not_told(manager, path):
    """`READY=1` after `STOPPING=1` would be a lie."""
    slow = """
import sys
from reverb.server_executable import server_main

def reload_config(server, given, before, reload_config=server_main.reload_config):
    print("reloading", flush=True)
    sys.stdin.readline()
    return reload_config(server, given, before)

server_main.reload_config = reload_config
"""
    with running(path, manager.address, source=slow + COMMAND) as program:
        assert manager.message() == STARTING
        program.line()
        assert manager.message()[0] == "READY=1"
        program.signal(signal.SIGHUP)
        assert program.line() == "reloading"
        assert manager.message()[0] == "RELOADING=1"
        program.signal(signal.SIGTERM)
        assert manager.message()[0] == "STOPPING=1"
        program.tell()
        assert program.ended() == 0
        assert manager.is_silent()


WATCHED = {"WATCHDOG_USEC": "400000"}
ALIVE = ["WATCHDOG=1"]


@pytest.mark.parametrize("kind", ["plain", "full", "tls"])
def test_a_server_that_answers_says_so_until_it_stops(kind, manager, path, tmp_path):
    options = []
    if kind == "full":
        options = ["--limit-connections=1"]
    elif kind == "tls":
        native.self_signed(str(tmp_path), ["localhost"], 1)
        tokens = TokensFile(tmp_path / "tokens")
        tokens.add("learner", "sample")
        options = [f"--tls-cert={tmp_path}/tls.crt", f"--tls-key={tmp_path}/tls.key"]
        options.append(f"--tokens={tokens.path}")
    with (
        running(path, manager.address, *options, **WATCHED) as program,
        contextlib.ExitStack() as held,
    ):
        assert manager.message() == STARTING
        port = int(re.search(r" on port (\d+) ", program.line())[1])
        assert manager.message()[0] == "READY=1"
        if kind == "full":
            held.enter_context(Http2(port))
        assert [manager.message() for _ in range(3)] == 3 * [ALIVE]
        program.signal(signal.SIGTERM)
        told = []
        while told[-1:] != [stopping(10)]:
            told.append(manager.message())
        assert told[:-1] == [ALIVE] * (len(told) - 1)
        assert program.ended() == 0
        assert manager.is_silent()


def test_a_server_that_does_not_answer_is_not_said_to(manager, path):
    silent = """
from reverb.errors import UnavailableError
from reverb.server import Server

def status(self):
    raise UnavailableError("its tables hang")

Server.status = status
"""
    with running(path, manager.address, source=silent + COMMAND, **WATCHED) as program:
        assert [manager.message()[0] for _ in range(2)] == [*STARTING, "READY=1"]
        program.wait_for_error("the server does not answer its own probe: its tables hang")
        assert manager.is_silent()


def test_a_probe_needs_an_answer_of_the_port():
    with reverb.Server([reverb.Table.queue("t", 1)], host="127.0.0.1") as server:
        for host in (None, "127.0.0.1", "localhost"):
            server_life._probe(server, host, DEADLINE_S)
        with socket.create_server(("127.0.0.1", 0)) as frozen:
            fake = types.SimpleNamespace(status=server.status, port=frozen.getsockname()[1])
            with pytest.raises(TimeoutError):
                server_life._probe(fake, None, 0.05)
        with pytest.raises(ConnectionRefusedError):
            server_life._probe(fake, None, DEADLINE_S)


@pytest.mark.parametrize(
    "environment",
    [{"WATCHDOG_PID": "1", **WATCHED}, {"WATCHDOG_USEC": "soon"}, {}],
    ids=["another process", "no number", "absent"],
)
def test_nobody_is_watched_who_was_not_meant(environment, manager, monkeypatch):
    for name, value in {"NOTIFY_SOCKET": manager.address, **environment}.items():
        monkeypatch.setenv(name, value)
    told = ServiceManager()
    assert not {"WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)
    before = threading.active_count()
    with told.watched(lambda timeout_s: None):
        assert threading.active_count() == before


def test_only_work_gets_more_time(manager, monkeypatch):
    """A start that waits for ever must end with the time of the unit."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setattr(service_manager, "_WORK_INTERVAL_S", 0.01)
    used = iter([0.0, 1.0, 1.0, 1.0, 2.0])
    seen = []
    monkeypatch.setattr(time, "process_time", lambda: seen.append(next(used, 2.0)) or seen[-1])
    with ServiceManager().working():
        wait_until(lambda: len(seen) > 8)
    assert [manager.message() for _ in range(2)] == 2 * [["EXTEND_TIMEOUT_USEC=60000000"]]
    assert manager.is_silent()


def test_a_long_start_and_a_long_stop_get_more_time(manager, path):
    busy = """
import select
import sys
from reverb.server import Server
from reverb.server_executable import server_main, service_manager

service_manager._WORK_INTERVAL_S = 0.05

def work():
    print("working", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        pass
    sys.stdin.readline()

def start(*values, start=server_main.Server, **named):
    work()
    return start(*values, **named)

def stop(self, drain_s, stop=Server.stop):
    work()
    stop(self)

server_main.Server, Server.stop = start, stop
"""
    more = ["EXTEND_TIMEOUT_USEC=60000000"]
    with running(path, manager.address, source=busy + COMMAND) as program:
        assert program.line() == "working"
        assert [manager.message() for _ in range(2)] == [STARTING, more]
        program.tell()
        program.line()
        while (told := manager.message()) == more:
            pass
        assert told[0] == "READY=1"
        program.signal(signal.SIGTERM)
        assert program.line() == "working"
        assert [manager.message() for _ in range(2)] == [stopping(10), more]
        program.tell()
        assert program.ended() == 0


BAD = {
    "nothing_there": "{}/nowhere",
    "relative": "notify",
    "only_an_at": "@",
    "too_long": "/" + 200 * "x",
    "a_virtual_machine": "vsock:2:1234",
    "a_directory": "{}",
    "no_socket": "{}/server.textproto",
}


@pytest.mark.parametrize("address", BAD.values(), ids=BAD)
def test_a_wrong_address_is_told_once_and_harms_nothing(address, path, tmp_path):
    address = address.format(tmp_path)
    with running(path, address) as program:
        client = client_of(program.line())
        client.insert([1], {"t": 1.0})
        program.signal(signal.SIGHUP)
        program.wait_for_error("nothing is different\n")
        program.stop()
        warnings = [it for it in messages(program.errors) if it.startswith("WARN ")]
        assert len(warnings) == 1
        told = f"WARN server: cannot notify the service manager at NOTIFY_SOCKET={address}: "
        assert warnings[0].startswith(told)


def test_a_manager_that_ends_is_told_once_and_harms_nothing(manager, path):
    with running(path, manager.address) as program:
        program.line()
        manager.close()
        for max_size in (30, 40):
            path.write_text(CONFIG.replace("max_size: 20", f"max_size: {max_size}"))
            program.signal(signal.SIGHUP)
            program.wait_for_error(f" -> {max_size}\n")
        program.stop()
        warnings = [it for it in messages(program.errors) if it.startswith("WARN ")]
        assert len(warnings) == 1
        assert "NOTIFY_SOCKET" in warnings[0]
        assert "Connection refused" in warnings[0]


@pytest.fixture
def full(manager):
    """A manager whose socket takes no more: each message waits."""
    address = manager.address
    target = f"\0{address[1:]}" if address[0] == "@" else address
    with contextlib.ExitStack() as stack:
        is_full = False
        while not is_full:
            # Each sender may have so much on its way; the limit of the socket is another one.
            sender = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            sender.setblocking(False)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    sender.sendto(b"full", target)
                    sent += 1
            is_full = sent == 0
        yield manager


def test_a_manager_that_reads_nothing_delays_it_by_seconds(full, path):
    with running(path, full.address) as program:
        client = client_of(program.line())
        client.insert([1], {"t": 1.0})
        program.stop()
        assert "timed out" in program.errors


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}], ids=["absent", "empty"])
def test_without_a_manager_nothing_is_said(environment, path, monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    with Program(COMMAND, f"--config-file={path}", **environment) as program:
        program.line()
        program.stop()
        assert "service manager" not in program.errors


def test_a_status_is_one_short_line(manager, monkeypatch):
    """Names and paths come from elsewhere; a line end must not begin another message."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    told = ServiceManager()
    assert "NOTIFY_SOCKET" not in os.environ, "programs that it starts would speak for it"
    told.ready("table a\nSTOPPING=1\r\nMAINPID=1 \udc80")
    assert manager.message() == ["READY=1", "STATUS=table a STOPPING=1 MAINPID=1 ?"]
    told.ready(10_000 * "x")
    assert manager.message() == ["READY=1", f"STATUS={500 * 'x'}"]
