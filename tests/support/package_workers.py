# SPDX-License-Identifier: Apache-2.0
"""Processes that use one of the two packages; see `conformance/peer_programs/worker.py`."""

from __future__ import annotations

import json
import os
import pathlib
import queue
import signal
import subprocess
import tempfile
import threading
from typing import Any

_PROGRAM = pathlib.Path(__file__).parents[1] / "conformance" / "peer_programs" / "worker.py"
_ANSWER_SECONDS = 50


class WorkerError(Exception):
    """The error of a call in the worker.

    Attributes:
      types: Names of the exception's class and of its base classes.
      message: Its text.
    """

    def __init__(self, types: list[str], message: str, details: str) -> None:
        super().__init__(f"{types[0]}: {message}\n{details}")
        self.types = types
        self.message = message


class WorkerHungError(AssertionError):
    """A call did not end in time; the process was ended."""


class WorkerEndedError(AssertionError):
    """The process ended instead of answering."""


class Worker:
    """A process with one of the packages.

    Attributes:
      package: `ours` or `peer`.
      store_directory: Where servers of ours have stores that forget at once; `None`: no stores.
    """

    store_directory: str | None = None

    def __init__(self, package: str, python: str, program: pathlib.Path = _PROGRAM) -> None:
        self.package = package
        # Its own directory is on its path, and nothing of ours.
        hidden = ("PYTHONPATH", "PYTHONSAFEPATH")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [python, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            cwd=program.parent,
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if package == "ours" and program is _PROGRAM and self.store_directory is not None:
            tests = pathlib.Path(__file__).parents[1]
            self.call("give_stores", tests=str(tests), directory=self.store_directory)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def call(self, name: str, **arguments: Any) -> Any:
        """Calls a function over there and returns its result."""
        self.submit(name, **arguments)
        return self.result()

    def submit(self, name: str, **arguments: Any) -> None:
        """Starts a call whose `result` is fetched later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
        self._process.stdin.flush()

    def result(self, seconds: float = _ANSWER_SECONDS) -> Any:
        """Returns the result of the oldest call, or raises `WorkerError`."""
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            tail = self._tail()
            self.kill()
            raise WorkerHungError(f"no answer after {seconds} s\n{tail}") from None
        if not line:
            raise WorkerEndedError(f"the {self.package} process ended\n{self._tail()}")
        answer = json.loads(line)
        if "error" in answer:
            error = answer["error"]
            raise WorkerError(error["types"], error["message"], error["traceback"])
        return answer["result"]

    def busy(self, seconds: float) -> bool:
        """Whether the oldest call has not ended after `seconds`."""
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            return True
        raise AssertionError(f"the call ended already: {line}")

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process, for example SIGSTOP."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends the process as a crash would."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _tail(self) -> str:
        if self._log.closed:
            return ""
        self._log.seek(0)
        return self._log.read()[-3000:]
