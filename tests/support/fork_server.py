# SPDX-License-Identifier: Apache-2.0
"""Programs as forks of an interpreter that has imported the package: each starts 0.3 s sooner.

A process of the tests has one such interpreter, the fork server. It imports, starts no thread and
runs nothing. A child takes the environment, the directory and the standard streams that it is
given, is `__main__`, and ends as any interpreter does.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from typing import Any

# Variables that are read at the start of an interpreter or at the import of the package: programs
# that differ in these need a new interpreter.
_READ_AT_START = ("PYTHON", "LD_", "MIMALLOC_", "MALLOC_", "OPENBLAS_", "OMP_", "REVERB_")
# Imports of most programs.
_IMPORTED = ("reverb.testing", "reverb.server_executable.server_main", "support.programs")
_MAX_REQUEST_BYTES = 1 << 20
# Another thread may have taken the answer that one waits for.
_LOOK_S = 0.05
_MAIN = "from support import fork_server; fork_server.main()"


class ForkedProcess:
    """A child of the fork server, with what `subprocess.Popen` has of use to a test."""

    def __init__(self, server: ForkServer, pid: int, ends: list[int]) -> None:
        self._server = server
        self.pid = pid
        self.stdin = os.fdopen(ends[0], "w", encoding="utf-8")
        self.stdout = os.fdopen(ends[1], encoding="utf-8")
        self.stderr = os.fdopen(ends[2], encoding="utf-8")

    def poll(self) -> int | None:
        """Its exit code, or `None` while it runs."""
        return self._server.exit_code(self.pid, 0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it ends and returns its exit code."""
        code = self._server.exit_code(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to it, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it on the spot."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The interpreter that forks, seen from the tests."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._at_start = _at_start(environment)
        self._socket, theirs = socket.socketpair()
        # Its streams are pipes, as those of its children are: Python remembers what cannot seek.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(theirs.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()

    def can_run(self, environment: dict[str, str]) -> bool:
        """Whether a child can be what a new interpreter with this environment would be."""
        return self._process.poll() is None and _at_start(environment) == self._at_start

    def start(
        self, source: str, arguments: list[str], environment: dict[str, str]
    ) -> ForkedProcess:
        """Starts a program."""
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        request = {
            "source": source,
            "arguments": arguments,
            "environment": environment,
            "directory": str(pathlib.Path.cwd()),
        }
        data = json.dumps(request).encode()
        assert len(data) < _MAX_REQUEST_BYTES
        with self._lock:
            socket.send_fds(self._socket, [len(data).to_bytes(4, "big")], theirs)
            self._socket.sendall(data)
            while True:
                pid, code = self._answer()
                if code is None:
                    break
                self._codes[pid] = code
            # The number of a child that has ended may be that of a new one.
            self._codes.pop(pid, None)
        for end in theirs:
            os.close(end)
        return ForkedProcess(self, pid, ours)

    def exit_code(self, pid: int, timeout_s: float | None) -> int | None:
        """Waits until a child has ended; returns its exit code, `None` if it has not in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                while pid not in self._codes and self._has_answer():
                    ended, code = self._answer()
                    assert code is not None
                    self._codes[ended] = code
                if pid in self._codes:
                    return self._codes[pid]
            if deadline is not None and time.monotonic() >= deadline:
                return None
            self._has_answer(
                _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
            )

    def close(self) -> None:
        """Ends it; its children go on."""
        # Closing is not enough: a fork of the tests may have the socket open.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._process.communicate()

    def _has_answer(self, timeout_s: float = 0) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(max(0, timeout_s)))

    def _answer(self) -> tuple[int, int | None]:
        """A line of the server: the process of a child, and its exit code when it has one."""
        line = b""
        # Byte by byte, so that nothing is left in a buffer that `select` does not see.
        while not line.endswith(b"\n"):
            byte = self._socket.recv(1)
            assert byte, "the fork server has ended"
            line += byte
        pid, _, code = line.decode().strip().partition(" ")
        return int(pid), int(code) if code else None


_server: ForkServer | None = None


def start(
    source: str, arguments: list[str], environment: dict[str, str], usual: dict[str, str]
) -> ForkedProcess | None:
    """Starts a program; returns `None` if it needs an interpreter of its own.

    Args:
      source: The program.
      arguments: Its arguments.
      environment: Its environment.
      usual: That of most programs, which no test has changed. The fork server has it.
    """
    global _server
    if sys.platform != "linux":
        return None
    if _server is None:
        _server = ForkServer(usual)
        atexit.register(_close, _server, os.getpid())
    if not _server.can_run(environment):
        return None
    return _server.start(source, arguments, environment)


def _close(server: ForkServer, owner: int) -> None:
    """At the exit of the tests; that of a fork of theirs is not meant."""
    if os.getpid() == owner:
        server.close()


def _at_start(environment: dict[str, str]) -> dict[str, str]:
    return {name: it for name, it in environment.items() if name.startswith(_READ_AT_START)}


# ---- In the fork server --------------------------------------------------------------------------


def main() -> None:
    """Forks a child for each request; returns to be that child, or when the tests have ended."""
    for module in _IMPORTED:
        importlib.import_module(module)
    gc.freeze()  # A collection in a child would copy all that was imported.
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        _run(request)


def _serve(peer: socket.socket) -> dict[str, Any] | None:
    """Returns the request in the child, `None` in the server."""
    selector = selectors.DefaultSelector()
    selector.register(peer, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not peer:
                pid = key.data
                _, status = os.waitpid(pid, 0)
                selector.unregister(key.fileobj)
                os.close(key.fd)
                peer.sendall(f"{pid} {os.waitstatus_to_exitcode(status)}\n".encode())
                continue
            size, streams, _, _ = socket.recv_fds(peer, 4, 3)
            if not size:
                return None
            data = b""
            while len(data) < int.from_bytes(size, "big"):
                data += peer.recv(_MAX_REQUEST_BYTES)
            pid = os.fork()
            if pid == 0:
                for open_file in list(selector.get_map().values()):
                    os.close(open_file.fd)
                peer.detach()
                selector.close()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                return json.loads(data)
            for stream in streams:
                os.close(stream)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            peer.sendall(f"{pid}\n".encode())


def _run(request: dict[str, Any]) -> None:
    """Runs a program as `python -c` does."""
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", *request["arguments"]]
    sys.excepthook = _tell
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    exec(compile(request["source"], "<string>", "exec"), vars(program))


def _tell(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Leaves out of a traceback what is above the program."""
    while trace is not None and trace.tb_frame.f_globals is not vars(sys.modules["__main__"]):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)
