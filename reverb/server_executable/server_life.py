# SPDX-License-Identifier: Apache-2.0
"""Life cycle of the process `reverb_server`: start, report readiness, wait for a signal, stop."""

import importlib.metadata
import os
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable, Sequence

from reverb._server.first_process import SIGNALS, end_at_signals
from reverb.errors import ReverbError
from reverb.server import Server, Table
from reverb.server_executable.reload_thread import ReloadThread
from reverb.server_executable.server_log import print_notice
from reverb.server_executable.service_manager import ServiceManager

__all__ = ["FAILED", "INTERRUPTED", "STOPPED", "print_start", "run_until_signalled"]

# Exit codes. An invalid command line or config is 2, as in argparse.
STOPPED = 0
FAILED = 1
INTERRUPTED = 128 + signal.SIGINT

# Limit of table names in the line about the start.
_MAX_TABLES_SHOWN = 20

# Time for the line on standard output that the server is ready, when it ends.
_MAX_PRINTING_S = 1.0


def run_until_signalled(
    start: Callable[[], Server],
    table_names: list[str],
    host: str | None,
    http_host: str,
    *,
    drain_timeout_s: float = 0.0,
    reload: Callable[[Server], str] | None = None,
    security: Callable[[], str] = lambda: "without TLS",
    http_scheme: str = "http",
) -> int:
    """Runs a server until a signal stops it; returns the exit code. Call it in the main thread.

    `start` starts the server. A signal during the start ends the process, except a SIGHUP that
    means `reload`: that is done after the start, in another thread, and returns a line about its
    outcome. Without `reload`, SIGHUP stops the server. When the server is ready, the names of its
    tables, its hosts (`None`: all addresses) and the text of `security` about its protection are
    printed. The stop waits `drain_timeout_s` seconds for unconfirmed inserts.
    """
    manager = ServiceManager()
    try:
        with _Signals(does_reload=reload is not None) as signals:
            manager.starting("starting: the tables are loading")
            with manager.working():
                server = start()
            signals.handle_stops()
            addresses = "all addresses" if host is None else host
            ready = f"ready on port {server.port} of {addresses}, {security()}"
            if server.unix_address is not None:
                ready += f"; and on {server.unix_address}"
                addresses += f" and on {server.unix_address}"
            if server.http_port is not None:
                url = f"{http_scheme}://{http_host}:{server.http_port}/"
                ready += f"; the page, metrics and probes are at {url}"
            print_notice(ready)
            manager.ready(ready)
            tables = ", ".join(table_names)
            printing = _print_in_thread(
                f"reverb_server is ready on port {server.port} of {addresses}: tables {tables}"
            )
            reloads = None
            if reload is not None:
                reloads = ReloadThread(lambda: _reload(server, reload, manager, ready))
            with manager.watched(lambda timeout_s: _probe(server, host, timeout_s)):
                received = signals.wait()
                while reloads is not None and received.name == "SIGHUP":
                    reloads.request()
                    received = signals.wait()
    except KeyboardInterrupt:  # Before the handlers were installed.
        return INTERRUPTED
    except (ReverbError, OSError) as error:
        print_notice(f"cannot start: {error}", "error")
        return FAILED
    status = f"stopping after {received.name}: drains for {drain_timeout_s:g} s at most"
    manager.stopping(status, drain_timeout_s)
    with manager.working():
        code = _stop(server, received, drain_timeout_s, reloads)
    printing.join(_MAX_PRINTING_S)
    return code


def _probe(server: Server, host: str | None, timeout_s: float) -> None:
    """Returns if the server can tell the state of its tables, and its port answers.

    A peer that speaks HTTP/1 gets a hint by the threads that serve clients, without a token, and
    without TLS, too.

    Raises:
      OSError: If no answer comes within `timeout_s` seconds.
    """
    server.status()
    address = ((host or "127.0.0.1").strip("[]"), server.port)
    with socket.create_connection(address, timeout_s) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        if not connection.recv(1):
            raise OSError(f"port {server.port} closed the connection without an answer")


def _reload(
    server: Server, reload: Callable[[Server], str], manager: ServiceManager, ready: str
) -> None:
    manager.reloading()
    outcome = "the reload has failed"
    try:
        outcome = reload(server)
    finally:
        manager.ready(f"{ready}; {outcome}")


def _stop(
    server: Server,
    received: signal.Signals,
    drain_timeout_s: float,
    reloads: ReloadThread | None,
) -> int:
    print_notice(f"stopping after {received.name}")
    try:
        server.stop(drain_s=drain_timeout_s)
    except ReverbError as error:
        print_notice(f"stopped, but: {error}", "error")
        return FAILED
    finally:
        if reloads is not None:
            reloads.close()
    print_notice("stopped", "info", **_totals(server))
    return INTERRUPTED if received == signal.SIGINT else STOPPED


def print_start(tables: Sequence[Table], max_bytes: object) -> None:
    """Logs a line about the server that is about to start, with the limit of its memory."""
    limits = [f"{table.name} (max_size {table.info.max_size:,})" for table in tables]
    if len(limits) > _MAX_TABLES_SHOWN:
        limits[_MAX_TABLES_SHOWN:] = [f"and {len(limits) - _MAX_TABLES_SHOWN} more"]
    memory = "no max_bytes" if max_bytes is None else f"max_bytes {max_bytes}"
    version = importlib.metadata.version("reverb-replay")
    print_notice(f"reverb-replay {version} starts with {memory}: tables {', '.join(limits)}")


def _totals(server: Server) -> dict[str, str | int]:
    """Counters of the server's whole run, for its last line of the log."""
    status = server.status()
    tables = status.tables.values()
    path = status.checkpoints.latest_path
    saved = {} if path is None else {"checkpoint": path}
    return {
        "inserted": sum(table.inserts for table in tables),
        "sampled": sum(table.samples for table in tables),
        "seconds": round(max(status.now - status.started_at, 0)),
        **saved,
    }


def _print_in_thread(text: str) -> threading.Thread:
    """Prints a line for programs, to standard output; if that is closed, to standard error.

    The server continues if no program reads the line. The interpreter cannot end while a thread is
    inside `sys.stdout`, so the thread has a stream of its own.
    """

    def write() -> None:
        if sys.stdout is None:
            return
        try:
            with open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as stream:
                stream.write(f"{text}\n")
        except (OSError, ValueError) as error:
            print_notice(f"{text} (standard output is closed: {error})", "warn")

    thread = threading.Thread(target=write, name="reverb-ready", daemon=True)
    thread.start()
    return thread


class _Signals:
    """Waits for signals. After the block, a stop signal kills the process.

    SIGHUP is the exception: when a terminal is closed, the shell and the system send one each, and
    the second would arrive during the last save. After the block it is ignored.

    The handlers do nothing. The interpreter writes the number of each signal to a pipe, so no
    signal is lost and no code is interrupted.
    """

    def __init__(self, *, does_reload: bool) -> None:
        self._does_reload = does_reload
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> "_Signals":
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        end_at_signals()
        if self._does_reload:  # Also under nohup, because a reload does not end the server.
            for number in SIGNALS:
                if number.name == "SIGHUP":
                    self._handle(number)
        return self

    def handle_stops(self) -> None:
        """Installs the handlers: from now on no signal ends the process."""
        for number in SIGNALS:
            # Signals that the parent ignores stay ignored: a shell starts background jobs with
            # SIGINT ignored, and nohup ignores SIGHUP.
            if number not in self._handled and signal.getsignal(number) != signal.SIG_IGN:
                self._handle(number)

    def __exit__(self, *exc: object) -> None:
        """Restores the default action of the signals, which is to end the process."""
        for number in self._handled:
            is_hangup = number.name == "SIGHUP"
            signal.signal(number, signal.SIG_IGN if is_hangup else signal.SIG_DFL)
        end_at_signals()
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self) -> signal.Signals:
        """Blocks until a signal comes."""
        while True:
            number = os.read(self._reader, 1)[0]
            if number in SIGNALS:
                return signal.Signals(number)

    def _handle(self, number: signal.Signals) -> None:
        signal.signal(number, _do_nothing)
        self._handled.append(number)


def _do_nothing(number: int, frame: types.FrameType | None) -> None:
    del number, frame
