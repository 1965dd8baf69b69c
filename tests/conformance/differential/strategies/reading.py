# SPDX-License-Identifier: Apache-2.0
"""Steps that sample: `Client.sample` and datasets."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from strategies.schemas import has_empty_leaf


@st.composite
def samples(draw: st.DrawFn, tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a `Client.sample`."""
    return {
        "do": "sample",
        "table": draw(st.sampled_from(tables))["name"],
        "count": draw(st.integers(1, 3)),
        "emit_timesteps": draw(st.booleans()),
        "unpack": draw(st.booleans()),
    }


@st.composite
def tf_samples(draw: st.DrawFn, tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a `TFClient.sample`, seldom with a wrong dtype.

    Not with two mistakes at once: which one is reported first is not promised.
    """
    table = draw(st.sampled_from(tables))
    return {
        "do": "tf_sample",
        "table": table["name"],
        "mode": draw(st.sampled_from(["eager", "function", "session"])),
        "wrong": draw(st.integers(0, 7)) == 7 and table["signature"] != "open",
    }


@st.composite
def backpressures(draw: st.DrawFn, tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a writer that is held back by a queue; other tables give another order."""
    queues = [table["name"] for table in tables if table["make"] == "queue"]
    if not queues:
        return draw(samples(tables))
    return {
        "do": "backpressure",
        "table": draw(st.sampled_from(queues)),
        "count": draw(st.sampled_from([3, 6, 15, 45])),
    }


@st.composite
def _options(draw: st.DrawFn) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_in_flight_samples_per_worker": draw(st.sampled_from([1, 2, 3, 10])),
        "max_samples": draw(st.integers(1, 6)),
    }
    if draw(st.integers(0, 3)):
        options["rate_limiter_timeout_ms"] = 150
    if draw(st.booleans()):
        options["max_samples_per_stream"] = draw(st.sampled_from([1, 2, 5]))
    return options


@st.composite
def _pipelines(draw: st.DrawFn, schema: Any, *, uneven: bool) -> list[list[Any]]:
    # TensorFlow's `unbatch` divides by the size of a leaf, and crashes if that is zero.
    may_unbatch = not has_empty_leaf(schema)
    stages: list[list[Any]] = []
    batched = 0
    for _ in range(draw(st.integers(0, 3))):
        names = ["batch", "batch", "batch", "prefetch", "skip", "take"] + ["unbatch"] * (
            batched if may_unbatch else 0
        )
        name = draw(st.sampled_from(names))
        if name == "batch":
            # Items that cannot be stacked are an error here as soon as they are there, and in the
            # original when they are stacked, which it does not do with a dropped remainder.
            drop = False if uneven else draw(st.booleans())
            stages.append([name, draw(st.integers(1, 4)), drop])
            batched += 1
        elif name == "unbatch":
            stages.append([name])
            batched -= 1
        else:
            stages.append([name, draw(st.integers(1, 4))])
    return stages


@st.composite
def datasets(
    draw: st.DrawFn, tables: list[dict[str, Any]], schema: Any, *, uneven: bool
) -> dict[str, Any]:
    """Returns a pipeline over a `TrajectoryDataset` or a `TimestepDataset`."""
    table = draw(st.sampled_from(tables))
    kinds = {"none": "TimestepDataset", "open": "TrajectoryDataset"}
    # Any kind can read a table without a signature; with one, all but one kind fails.
    fitting = [kinds[table["signature"]]] * 4 if table["signature"] else []
    kind = draw(st.sampled_from(fitting + list(kinds.values())))
    likely = "none" if kind == "TimestepDataset" else "open"
    specs = [likely] * 9 + ["signature"] * (9 if table["signature"] else 1) + ["rank", "open"]
    options = draw(_options())
    way = draw(st.sampled_from(["one"] * 6 + ["interleave", "servers", "workers", "many"]))
    interleave = {"cycle_length": draw(st.integers(1, 2)), "block_length": draw(st.integers(1, 2))}
    if way == "workers":
        options["num_workers_per_iterator"] = draw(st.sampled_from([2, 3]))
    if way == "many":
        interleave["num_parallel_calls"] = 2
    # Several workers or samplers of one table give its items in any order.
    unordered = way in ("workers", "many")
    return {
        "do": "dataset",
        "kind": kind,
        "table": table["name"],
        "mode": draw(st.sampled_from(["eager", "function", "session"])),
        "specs": likely if way == "servers" else draw(st.sampled_from(specs)),
        "options": options,
        "interleave": interleave if way not in ("one", "workers") else None,
        "sources": {"servers": "servers", "many": 2}.get(way, 1),
        "unordered": unordered,
        "pipeline": [["prefetch", 2]] if unordered else draw(_pipelines(schema, uneven=uneven)),
    }
