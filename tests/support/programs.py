# SPDX-License-Identifier: Apache-2.0
"""Small Python programs in processes of their own, which a test talks to, interrupts and kills."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

from support import fork_server
from support.waiting import DEADLINE_S, wait_until

_PROC = pathlib.Path("/proc")
# Where a program finds `support`, as the tests do.
_TESTS = pathlib.Path(__file__).parents[1]


# What each program does first. Jobs in the background of a shell ignore SIGINT, and what they start
# inherits that.
PROLOGUE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


class Program:
    """A program that runs while the test does.

    It prints lines; the test reads them with `line` and answers with `tell`. Everything that it
    prints to standard error is kept in `errors`. It can import `support`.

    It is a fork of an interpreter that has imported the package already, which saves most of the
    time that it takes to start. `FreshProgram` is none.
    """

    _is_forked = True

    def __init__(self, source: str, *args: Any, **environment: str) -> None:
        source, arguments = PROLOGUE + textwrap.dedent(source), list(map(str, args))
        variables = _environment(**environment)
        forked = None
        if self._is_forked:
            forked = fork_server.start(source, arguments, variables, _USUAL)
        self._process = forked or subprocess.Popen(
            [sys.executable, "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(BrokenPipeError):  # It may not have read its input.
                pipe.close()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def errors(self) -> str:
        """Its output to standard error so far."""
        return "".join(self._errors)

    def wait_for_error(self, text: str, timeout_s: float = DEADLINE_S) -> None:
        """Waits until `text` stands in `errors`: a pipe of its own, which can lag behind `line`."""
        deadline = time.monotonic() + timeout_s
        while text not in self.errors:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.errors}"
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends it by SIGTERM, which must be a good end."""
        self.signal(signal.SIGTERM)
        assert self.ended() == 0, self.errors

    def line(self, timeout_s: float = DEADLINE_S) -> str:
        """Returns the next line that it prints."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"no line came within {timeout_s} s: {self.errors}") from None
        assert line is not None, f"the program ended with {self._process.wait()}: {self.errors}"
        return line

    def rest(self) -> list[str]:
        """Waits until it ends, and returns the lines that are left."""
        lines = []
        while (line := self._lines.get()) is not None:
            lines.append(line)
        return lines

    def tell(self, line: object = "") -> None:
        """Sends a line to its standard input."""
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to it. After a SIGSTOP it stands still when this returns."""
        self._process.send_signal(number)
        # On a busy machine some of its threads run until one of them has seen the signal.
        if number == signal.SIGSTOP:
            wait_until(lambda: _is_stopped(self._process.pid))

    def kill(self) -> None:
        """Ends it on the spot, as a crash would."""
        self._process.kill()
        self._process.wait()

    def ended(self, timeout_s: float = DEADLINE_S) -> int:
        """Waits until it ends and returns its exit code."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {timeout_s} s: {self.errors}") from None
        for reader in self._readers:
            reader.join()
        return code

    def _read_output(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        for line in self._process.stderr:
            self._errors.append(line)


class FreshProgram(Program):
    """A program in an interpreter of its own, for tests of memory, imports, forks and exits."""

    _is_forked = False


def _environment(**changes: str) -> dict[str, str]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | changes
    paths = [environment.get("PYTHONPATH", ""), str(_TESTS)]
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


# Before a test has changed the environment.
_USUAL = _environment()


def run(
    source: str,
    *args: Any,
    timeout_s: float = DEADLINE_S,
    kind: type[Program] = Program,
    **environment: str,
) -> list[str]:
    """Runs a program to its end and returns the lines it printed. It must end well and silently."""
    with kind(source, *args, **environment) as program:
        code = program.ended(timeout_s)
        assert (code, program.errors) == (0, ""), f"exit code {code}\n{program.errors}"
        return program.rest()


# The same in an interpreter of its own.
run_fresh = functools.partial(run, kind=FreshProgram)


def _is_stopped(pid: int) -> bool:
    states = (it.read_text().rpartition(") ")[2][0] for it in _PROC.glob(f"{pid}/task/*/stat"))
    return all(state == "T" for state in states)


def resident_bytes(pid: int | str = "self") -> int:
    """Returns the memory that a process holds, of which pages in shared files are no part."""
    status = (_PROC / str(pid) / "status").read_text()
    return int(re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024


def peak_bytes(pid: int | str = "self") -> int:
    """Returns the most memory that a process has held so far."""
    status = (_PROC / str(pid) / "status").read_text()
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024


def open_files(pid: int | str = "self") -> int:
    """Returns how many file descriptors a process has open."""
    return len(list((_PROC / str(pid) / "fd").iterdir()))


def threads(pid: int | str = "self") -> int:
    """Returns how many threads a process has."""
    return len(list((_PROC / str(pid) / "task").iterdir()))
