# SPDX-License-Identifier: Apache-2.0
"""Measures `reverb.adapters.transfer_queue` beside TransferQueue, by the same calls.

    python benchmarks/transfer_queue.py                        # all cases
    python benchmarks/transfer_queue.py --case fields --rounds 9
    python benchmarks/transfer_queue.py --quick                # to see that it runs

Both have servers in processes of their own: ours one, TransferQueue a controller and two units of
`SimpleStorage` on Ray. They are measured in turn. What is read is compared with what was put, after
the clock.

`batch`: put and get of 1,024 keys with 10 fields of 8,192 float32. `fields`: get of 256 MB in 1, 8
and 32 fields. `jagged`: 1,024 keys with rows of 1 to 2,048 float32. `small`: one put of a few
numbers, one of a tag, and a get. `list`: 10,000 keys with 5 entries of tags. `memory`: of the
servers, for 10,000 keys with 30 small fields.

Ratios are medians over neighbours. The rows also go to `benchmarks/results/transfer_queue.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import logging
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from store_tables import Row, in_turn, ratio

# This file has the name of the library.
_HERE = pathlib.Path(__file__).parent
sys.path[:] = [path for path in sys.path if pathlib.Path(path or ".").resolve() != _HERE.resolve()]

import torch  # noqa: E402
from tensordict import TensorDict  # noqa: E402

OURS, THEIRS = "reverb-replay", "TransferQueue"
_RESULTS = _HERE / "results" / "transfer_queue.json"
_PARTITION = "train"
_SERVER = """
import reverb
from reverb.adapters.transfer_queue import make_tables
server = reverb.Server(make_tables())
print(server.port, flush=True)
server.wait()
"""


@dataclasses.dataclass(frozen=True)
class Subjects:
    """Both modules, connected.

    Attributes:
      modules: By name.
      rounds: Number of measurements of each.
      is_quick: To see that it runs.
    """

    modules: dict[str, Any]
    rounds: int
    is_quick: bool

    def size(self, usual: int) -> int:
        """The number of keys or calls, which is usually this."""
        return max(usual // 10, 2) if self.is_quick else usual

    def seconds(self, case: Callable[[Any], Callable[[], Any]]) -> dict[str, list[float]]:
        """The seconds of what `case` makes for a module, in turn; it is made before the clock."""

        def once(module: Any) -> float:
            call = case(module)
            begin = time.perf_counter()
            call()
            return time.perf_counter() - begin

        subjects = {name: lambda it=it: once(it) for name, it in self.modules.items()}
        return in_turn(subjects, self.rounds)

    def clear(self) -> None:
        """Empties all partitions of both."""
        for module in self.modules.values():
            for partition, keys in module.kv_list().items():
                if keys:
                    module.kv_clear(list(keys), partition)


def main() -> None:
    """Prints a line for each figure, with its goal where it has one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", choices=list(_CASES), action="append", help="only these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the keys, two rounds")
    parser.add_argument("--json", type=pathlib.Path, default=_RESULTS)
    arguments = parser.parse_args()
    versions = {"Python": platform.python_version(), "torch": torch.__version__}
    report: dict[str, Any] = {"machine": platform.platform(), "versions": versions}
    with contextlib.ExitStack() as stack:
        modules = {OURS: stack.enter_context(_ours()), THEIRS: stack.enter_context(_theirs())}
        versions[THEIRS] = modules[THEIRS].__version__
        print(f"{platform.platform()}, {os.cpu_count()} processors", versions)
        rounds = 2 if arguments.quick else arguments.rounds
        subjects = Subjects(modules, rounds, arguments.quick)
        for name in arguments.case or _CASES:
            load, lines = os.getloadavg()[0], []
            print(f"{name} (load {load:.1f})", flush=True)
            for row in _CASES[name](subjects):
                print(f"  {row.what:56}{row.value:12,.4g} {row.unit:8}{row.verdict}", flush=True)
                lines.append(dataclasses.asdict(row) | {"verdict": row.verdict})
            report[name] = {"rows": lines, "load": load}
            subjects.clear()
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def _rows(what: str, seconds: dict[str, list[float]], amount: float, unit: str) -> Iterator[Row]:
    """A row for each module, in `unit` of `amount` a second, or in its milliseconds."""
    for name, values in seconds.items():
        median = statistics.median(values)
        value = median * 1e3 if unit == "ms" else amount / median
        yield Row(f"{what}, {name}", value, unit)


def _times(what: str, seconds: dict[str, list[float]], goal: float | None) -> Row:
    return Row(f"{what}, {THEIRS} / {OURS}", ratio(seconds, THEIRS, OURS), "x", least=goal)


def _batch_of(keys: int, fields: int, width: int) -> tuple[list[str], Any]:
    generator = torch.Generator().manual_seed(0)
    names = [f"field_{index}" for index in range(fields)]
    values = {name: torch.randn(keys, width, generator=generator) for name in names}
    return [f"key_{index}" for index in range(keys)], TensorDict(values, batch_size=keys)


def _check(got: Any, put: Any) -> None:
    for name in put.keys():  # noqa: SIM118
        value = got[name]
        rows = torch.stack(list(value.unbind())) if value.is_nested else value
        assert torch.equal(rows, put[name]), name


def _put_and_get(
    subjects: Subjects, keys: int, fields: int, width: int, goals: tuple[float | None, float]
) -> Iterator[Row]:
    names, batch = _batch_of(keys, fields, width)
    megabytes = keys * fields * width * 4 / 1e6
    what = f"{megabytes:,.0f} MB in {fields} field{'s' * (fields > 1)}"

    def put(module: Any) -> Callable[[], Any]:
        return lambda: module.kv_batch_put(names, _PARTITION, fields=batch)

    def get(module: Any) -> Callable[[], Any]:
        return lambda: results.__setitem__(id(module), module.kv_batch_get(names, _PARTITION))

    results: dict[int, Any] = {}
    seconds = subjects.seconds(put)
    yield from _rows(f"put of {what}", seconds, megabytes, "MB/s")
    yield _times(f"put of {what}", seconds, goals[0])
    seconds = subjects.seconds(get)
    for got in results.values():
        _check(got, batch)
    yield from _rows(f"get of {what}", seconds, megabytes, "MB/s")
    yield _times(f"get of {what}", seconds, goals[1])
    results.clear()
    subjects.clear()


def _batch(subjects: Subjects) -> Iterator[Row]:
    yield from _put_and_get(subjects, subjects.size(1_024), 10, 8_192, (2.0, 2.0))


def _fields(subjects: Subjects) -> Iterator[Row]:
    keys = subjects.size(1_024)
    for fields, goal in ((1, 2.0), (8, 2.5), (32, 3.0)):
        yield from _put_and_get(subjects, keys, fields, 65_536 // fields, (None, goal))


def _jagged(subjects: Subjects) -> Iterator[Row]:
    keys = [f"key_{index}" for index in range(subjects.size(1_024))]
    lengths = [index * 7919 % 2_048 + 1 for index in range(len(keys))]
    rows = [torch.full((length,), float(length)) for length in lengths]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    batch = TensorDict({"x": nested}, batch_size=len(keys))
    seconds = subjects.seconds(lambda tq: lambda: tq.kv_batch_put(keys, _PARTITION, fields=batch))
    yield from _rows("put", seconds, 0, "ms")
    yield _times("put", seconds, None)
    seconds = subjects.seconds(lambda tq: lambda: tq.kv_batch_get(keys, _PARTITION))
    yield from _rows("get", seconds, 0, "ms")
    yield _times("get", seconds, None)


def _small(subjects: Subjects) -> Iterator[Row]:
    calls, values = subjects.size(100), {"x": torch.arange(16)}
    kinds: dict[str, tuple[float | None, Callable[[Any, str], Any]]] = {
        "put": (4.0, lambda tq, key: tq.kv_put(key, _PARTITION, fields=values, tag={"i": 1})),
        "tag": (4.0, lambda tq, key: tq.kv_put(key, _PARTITION, tag={"i": 2})),
        "get": (None, lambda tq, key: tq.kv_batch_get(key, _PARTITION)),
    }
    for what, (goal, call) in kinds.items():
        seconds = subjects.seconds(
            lambda tq, call=call: lambda: [call(tq, f"key_{index}") for index in range(calls)]
        )
        seconds = {name: [value / calls for value in of] for name, of in seconds.items()}
        yield from _rows(what, seconds, 0, "ms")
        yield _times(what, seconds, goal)


def _list(subjects: Subjects) -> Iterator[Row]:
    keys = [f"key_{index}" for index in range(subjects.size(10_000))]
    tags = [
        {"status": "done", "step": index, "reward": 0.5, "uid": f"u{index}", "version": 3}
        for index in range(len(keys))
    ]
    for module in subjects.modules.values():
        module.kv_batch_put(keys, _PARTITION, tags=tags)
        assert module.kv_list(_PARTITION) == {_PARTITION: dict(zip(keys, tags, strict=True))}
    seconds = subjects.seconds(lambda tq: lambda: tq.kv_list(_PARTITION))
    yield from _rows(f"{len(keys):,} keys", seconds, 0, "ms")
    yield _times(f"{len(keys):,} keys", seconds, 2.0)


def _memory(subjects: Subjects) -> Iterator[Row]:
    keys, batch = _batch_of(subjects.size(10_000), 30, 4)
    for name, module in subjects.modules.items():
        before = _server_bytes(name)
        module.kv_batch_put(keys, _PARTITION, fields=batch)
        megabytes = (_server_bytes(name) - before) / 1e6
        yield Row(f"{len(keys):,} keys x 30 fields of 16 bytes, {name}", megabytes, "MB")


def _server_bytes(name: str) -> int:
    """The private memory of the processes of a server."""
    total = 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_text()
            ours = "make_tables" in command
            theirs = command.startswith(("ray::SimpleStorageUnit", "ray::TransferQueueController"))
            if ours if name == OURS else theirs:
                status = (process / "status").read_text()
                total += int(status.partition("RssAnon:")[2].split()[0]) * 1024
    return total


@contextlib.contextmanager
def _ours() -> Iterator[Any]:
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            os.environ["REVERB_TQ_ADDRESS"] = f"localhost:{server.stdout.readline().strip()}"
            module = importlib.import_module("reverb.adapters.transfer_queue")
            module.init()
            yield module
        finally:
            server.kill()


@contextlib.contextmanager
def _theirs() -> Iterator[Any]:
    os.environ["RAY_DEDUP_LOGS"] = "0"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import ray

    ray.init(num_cpus=8, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    module = importlib.import_module("transfer_queue")
    module.init({"controller": {"polling_mode": True}})
    yield module
    module.close()
    ray.shutdown()


_CASES: dict[str, Callable[[Subjects], Iterator[Row]]] = {
    "batch": _batch,
    "fields": _fields,
    "jagged": _jagged,
    "small": _small,
    "list": _list,
    "memory": _memory,
}

if __name__ == "__main__":
    main()
