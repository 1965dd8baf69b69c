# SPDX-License-Identifier: Apache-2.0
"""Settings of tables: selectors whose choice is known beforehand, and every limiter."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# Priorities that every selector accepts; few values, so that ties are frequent.
priorities = st.sampled_from([1.0, 2.0, 0.5, 3.0, 0.0, -1.0])

_selectors = st.sampled_from(["Fifo", "Lifo", "MaxHeap", "MinHeap"])


@st.composite
def _limiters(draw: st.DrawFn) -> list[Any]:
    kinds = ["SampleToInsertRatio", "Queue", "Stack", "RateLimiter"]
    kind = draw(st.sampled_from(["MinSize"] * 6 + kinds))
    if kind == "MinSize":
        return [kind, draw(st.sampled_from([1, 1, 2, 3]))]
    if kind in ("Queue", "Stack"):
        return [kind, draw(st.integers(1, 8))]
    ratio = draw(st.sampled_from([1.0, 2.0, 0.5, 4.0]))
    size = draw(st.integers(1, 3))
    if kind == "SampleToInsertRatio":
        width = draw(st.sampled_from([1.0, 2.0, 5.0])) * max(1.0, ratio)
        return [kind, ratio, size, width]
    return [kind, ratio, size, draw(st.sampled_from([-4.0, 0.0, -100.0])), ratio * size + 8.0]


@st.composite
def tables(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """Returns a table's settings; `signature` says with which leading axis it has one."""
    make = draw(st.sampled_from(["Table", "Table", "Table", "queue", "stack"]))
    table: dict[str, Any] = {
        "name": name,
        "make": make,
        "signature": draw(st.sampled_from([None, None, None, "none", "open"])),
    }
    if make != "Table":
        return {**table, "max_size": draw(st.sampled_from([2, 5, 12, 40]))}
    return {
        **table,
        "sampler": draw(_selectors),
        "remover": draw(_selectors),
        "max_size": draw(st.sampled_from([1000, 1000, 3, 2, 5])),
        "max_times_sampled": draw(st.sampled_from([0, 0, 1, 2, 3, -1])),
        "limiter": draw(_limiters()),
    }
