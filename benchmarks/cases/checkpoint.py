# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a server's tables, and the latency of clients meanwhile."""

from __future__ import annotations

import pathlib
import tempfile
import time
from collections.abc import Mapping
from functools import partial

import actors
import measure
import numpy as np
import payloads
import probes
from servers import ServerUnderTest, TableSpec, build_server, open_server

from cases.case import Case, Metric

Figures = dict[str, measure.Figure]

_WRITERS = 2
_CHECKED_SAMPLES = 100
_LIMIT_PAUSE_MS = 20


def _save_and_load(
    scale: measure.Scale, *, payload: payloads.Payload, items: int
) -> Mapping[str, measure.Figure]:
    """Saves a full table, saves it again while it is used, and loads that into a new server."""
    count = items // 10 if scale.quick else items
    table = TableSpec(max_size=count)
    with tempfile.TemporaryDirectory() as root:
        with open_server("remote", [table], checkpoint_root=root) as server:
            _fill(server, payload, count)
            figures = {"save": _save_alone(server)}
            figures["disk"] = measure.Figure(_size(pathlib.Path(root)) / count, operations=count)
            figures |= _save_under_load(server, payload, scale)
        figures["load"] = _load(table, root, payload, count)
    return figures


def _fill(server: ServerUnderTest, payload: payloads.Payload, count: int) -> None:
    with actors.open_actors(_WRITERS, server.address, payload) as writers:
        server.client.reset("table")
        writers.write(count // _WRITERS)
    _require_size(server.client.server_info()["table"].current_size, count)


def _save_alone(server: ServerUnderTest) -> measure.Figure:
    cpu_before = server.cpu_seconds()
    started = time.perf_counter()
    server.client.checkpoint()
    elapsed = time.perf_counter() - started
    return measure.Figure(elapsed, cpu_us=(server.cpu_seconds() - cpu_before) * 1e6, operations=1)


def _save_under_load(
    server: ServerUnderTest, payload: payloads.Payload, scale: measure.Scale
) -> Figures:
    """One client inserts and one samples; both record every call, before and during the save."""
    with (
        probes.open_probe("insert", server.address, payload) as inserting,
        probes.open_probe("sample", server.address, payload) as sampling,
    ):
        calm = time.monotonic()
        time.sleep(scale.seconds)
        started = time.monotonic()
        server.client.checkpoint()
        ended = time.monotonic()
        calls = {"insert": inserting.calls(), "sample": sampling.calls()}
    figures = {"save_in_use": measure.Figure(ended - started, operations=1)}
    for kind, made in calls.items():
        begin, end = made[:, 0], made.sum(axis=1)
        figures |= _latencies(f"{kind}_calm", made[(begin > calm) & (end < started)])
        # A call counts if any part of it was during the save.
        figures |= _latencies(f"{kind}_saving", made[(end > started) & (begin < ended)])
    return figures


def _latencies(name: str, calls: np.ndarray) -> Figures:
    durations = calls[:, 1]
    p99 = float(np.percentile(durations, 99)) * 1e3
    count = len(durations)
    return {
        f"{name}_p99": measure.Figure(p99, operations=count),
        f"{name}_max": measure.Figure(float(durations.max()) * 1e3, operations=count),
    }


def _load(table: TableSpec, root: str, payload: payloads.Payload, count: int) -> measure.Figure:
    """Loads the checkpoint into a server in this process, and checks its items."""
    cpu_before = time.process_time()
    started = time.perf_counter()
    server = build_server([table], root)
    client = server.localhost_client()
    size = client.server_info()["table"].current_size
    elapsed = time.perf_counter() - started
    cpu = time.process_time() - cpu_before
    try:
        _require_size(size, count)
        for sample in client.sample("table", _CHECKED_SAMPLES, emit_timesteps=False):
            payload.require(sample.data)
    finally:
        server.stop()
    return measure.Figure(elapsed, cpu_us=cpu * 1e6, operations=1)


def _require_size(size: int, count: int) -> None:
    if size != count:
        raise ValueError(f"the table holds {size} items and not {count}")


def _size(root: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def _milliseconds(name: str, limit: float | None = None) -> Metric:
    return Metric(name, "ms", lower_is_better=True, limit=limit)


def _metrics(save_ratio: float | None = None) -> tuple[Metric, ...]:
    return (
        Metric("save", "s", lower_is_better=True, target_ratio=save_ratio),
        Metric("save_in_use", "s", lower_is_better=True),
        Metric("load", "s", lower_is_better=True, target_ratio=1 / 3),
        Metric("disk", "bytes/item", lower_is_better=True, target_ratio=1),
        _milliseconds("insert_calm_p99"),
        _milliseconds("insert_calm_max"),
        _milliseconds("insert_saving_p99"),
        _milliseconds("insert_saving_max", limit=_LIMIT_PAUSE_MS),
        _milliseconds("sample_calm_p99"),
        _milliseconds("sample_calm_max"),
        _milliseconds("sample_saving_p99"),
        _milliseconds("sample_saving_max", limit=_LIMIT_PAUSE_MS),
    )


def _case(
    name: str, what: str, payload: payloads.Payload, items: int, save_ratio: float | None = None
) -> Case:
    return Case(
        name,
        f"{what}: save, and load into a new server; save again while one process inserts (and "
        "flushes) item by item and another samples item by item.",
        partial(_save_and_load, payload=payload, items=items),
        _metrics(save_ratio),
    )


CASES = (
    _case(
        "checkpoint_small_1e6",
        "1e6 small items (1e5 in a quick run)",
        payloads.SMALL,
        1_000_000,
        save_ratio=1 / 5,
    ),
    _case(
        "checkpoint_atari_sparse_1e5",
        "1e5 items of five overlapping, mostly black frames (1e4 in a quick run)",
        payloads.ATARI_SPARSE,
        100_000,
    ),
    _case(
        "checkpoint_atari_random_1e5",
        "1e5 items of five overlapping frames of noise (1e4 in a quick run)",
        payloads.ATARI_RANDOM,
        100_000,
    ),
)
