# SPDX-License-Identifier: Apache-2.0
"""Clients that repeat a call and record how long every call took.

Run as a program this file is one such client: it connects, warms up, says `ready`, calls until it
reads a line, and answers with the beginning and the duration of every call.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import actors
import numpy as np
import payloads

_WARMUP_SECONDS = 1.0


class Probe:
    """A client process that repeats one call until its results are requested."""

    def __init__(self, kind: str, address: str, payload: payloads.Payload) -> None:
        """Starts the process; `kind` is `insert` (and flush) or `sample`."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, kind, address, payload.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_warm(self) -> None:
        """Blocks until the warm-up is over and calls are recorded."""
        self._answer()

    def calls(self) -> np.ndarray:
        """Stops the calls. Returns their starts and durations `[N, 2]`, in monotonic seconds."""
        if self._process.stdin is None:
            raise ValueError("the probe was started without pipes")
        self._process.stdin.write("end\n")
        self._process.stdin.flush()
        return np.asarray(json.loads(self._answer())).reshape(-1, 2)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            raise RuntimeError("a probe ended; see its error output")
        return line


@contextlib.contextmanager
def open_probe(kind: str, address: str, payload: payloads.Payload) -> Iterator[Probe]:
    """Starts a probe, waits until it is warm, and ends it afterwards."""
    probe = Probe(kind, address, payload)
    try:
        probe.wait_until_warm()
        yield probe
    finally:
        probe.close()


def _call(kind: str, address: str, payload: payloads.Payload) -> Callable[[], None]:
    import reverb

    client = reverb.Client(address)
    if kind == "insert":
        actor = actors.TrajectoryActor(client, payload)
        return lambda: actor.write(1)

    def sample() -> None:
        for item in client.sample("table", 1, emit_timesteps=False):
            payload.require(item.data)

    return sample


def _probe() -> None:
    kind, address, payload = sys.argv[1:]
    call = _call(kind, address, payloads.by_name(payload))
    until = time.monotonic() + _WARMUP_SECONDS
    while time.monotonic() < until:
        call()
    print("ready", flush=True)
    calls = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        started = time.monotonic()
        call()
        calls.append((started, time.monotonic() - started))
    print(json.dumps(calls), flush=True)


if __name__ == "__main__":
    _probe()
