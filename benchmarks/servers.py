# SPDX-License-Identifier: Apache-2.0
"""The server of a case: in its own process on the loopback, or in the process of the client.

Run as a program this file is the server process: it reads its options from its first line of input,
answers with its port and the seconds of its start, and ends when its input ends (so it cannot
outlive the benchmark).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """The options of a table, in a form that can be sent to another process.

    Attributes:
      name: Name of the table.
      sampler: `uniform`, `prioritized` or `fifo`.
      max_size: Maximum number of items.
      samples_per_insert: `None`: a limiter that only waits for `min_size` items.
      min_size: Number of items before the table can be sampled.
      remover: As `sampler`.
    """

    name: str = "table"
    sampler: str = "uniform"
    max_size: int = 1_000_000
    samples_per_insert: float | None = None
    min_size: int = 1
    remover: str = "fifo"

    def build(self) -> Any:
        """Returns the `reverb.Table`."""
        import reverb

        selectors = {
            "uniform": reverb.selectors.Uniform,
            "prioritized": lambda: reverb.selectors.Prioritized(0.8),
            "fifo": reverb.selectors.Fifo,
        }
        if self.samples_per_insert is None:
            limiter = reverb.rate_limiters.MinSize(self.min_size)
        else:
            limiter = reverb.rate_limiters.SampleToInsertRatio(
                self.samples_per_insert,
                self.min_size,
                error_buffer=self.samples_per_insert * self.min_size,
            )
        return reverb.Table(
            name=self.name,
            sampler=selectors[self.sampler](),
            remover=selectors[self.remover](),
            max_size=self.max_size,
            rate_limiter=limiter,
        )


class ServerUnderTest:
    """A running server and a client of it.

    Attributes:
      address: `host:port`.
      client: A `reverb.Client`.
      pid: The server's process.
      start_s: How long its start took, and the time of processors for it; 0 in this process.
    """

    def __init__(
        self,
        address: str,
        process: subprocess.Popen[str] | None,
        start_s: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Connects to `address`; `process` is the server's, or `None` if it is this one."""
        import reverb

        self.address = address
        self.client = reverb.Client(address)
        self.start_s = start_s
        self._process = process
        self.pid = os.getpid() if process is None else process.pid

    def cpu_seconds(self) -> float:
        """Returns the CPU time of the server's process; 0 if it runs in this one."""
        if self._process is None:
            return 0.0
        stat = pathlib.Path(f"/proc/{self._process.pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Returns the memory of the server's process after it has freed unused memory."""
        if self._process is None:
            raise ValueError("memory can only be told apart when the server has its own process")
        _ask(self._process, "trim")
        statm = pathlib.Path(f"/proc/{self._process.pid}/statm").read_text()
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def open_server(
    where: str,
    tables: Sequence[TableSpec] = (TableSpec(),),
    checkpoint_root: str | None = None,
    max_bytes: str | None = None,
    store: str | None = None,
    journal: bool = False,
) -> Iterator[ServerUnderTest]:
    """Starts a server, `remote` or `in_process`, and stops it at the end.

    It saves to `checkpoint_root` and loads from it, if that is given. `store` is the directory of
    its disk tier, and of its journal.
    """
    others = {"checkpoint_root": checkpoint_root, "max_bytes": max_bytes, "store": store}
    others["journal"] = journal
    if where == "in_process":
        server = build_server(tables, **others)
        try:
            yield ServerUnderTest(f"localhost:{server.port}", None)
        finally:
            server.stop()
        return
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        options = {"tables": [dataclasses.asdict(table) for table in tables], **others}
        port, wall_s, cpu_s = _ask(process, json.dumps(options)).split()
        yield ServerUnderTest(f"localhost:{port}", process, (float(wall_s), float(cpu_s)))
    finally:
        process.kill()
        process.wait()


def build_server(
    tables: Sequence[TableSpec],
    checkpoint_root: str | None = None,
    max_bytes: str | None = None,
    store: str | None = None,
    journal: bool = False,
) -> Any:
    """Returns a `reverb.Server` in this process."""
    import reverb

    # dm-reverb does not have all of them.
    options: dict[str, Any] = {}
    if checkpoint_root is not None:
        options["checkpointer"] = reverb.checkpointers.DefaultCheckpointer(checkpoint_root)
    if max_bytes is not None:
        options["max_bytes"] = max_bytes
    if store is not None:
        options["store"] = reverb.Store(store, journal=journal)
    return reverb.Server([table.build() for table in tables], **options)


def _ask(process: subprocess.Popen[str], line: str) -> str:
    if process.stdin is None or process.stdout is None:
        raise ValueError("the server process was started without pipes")
    process.stdin.write(line + "\n")
    process.stdin.flush()
    answer = process.stdout.readline().strip()
    if not answer:
        raise RuntimeError("the server process ended; see its error output")
    return answer


def _serve() -> None:
    options = json.loads(sys.stdin.readline())
    tables = [TableSpec(**fields) for fields in options["tables"]]
    others = {name: options[name] for name in options if name != "tables"}
    import reverb  # noqa: F401  # Not a part of the start.

    began, cpu_s = time.perf_counter(), time.process_time()
    server = build_server(tables, **others)
    print(server.port, time.perf_counter() - began, time.process_time() - cpu_s, flush=True)
    for _ in sys.stdin:
        ctypes.CDLL(None).malloc_trim(0)
        print("trimmed", flush=True)
    server.stop()


if __name__ == "__main__":
    _serve()
