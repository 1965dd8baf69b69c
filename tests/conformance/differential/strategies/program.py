# SPDX-License-Identifier: Apache-2.0
"""Whole programs: tables, and steps that write, read and change them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from strategies.control import controls
from strategies.reading import datasets, samples
from strategies.schemas import schemas
from strategies.structured import structured_writers
from strategies.tables import tables
from strategies.writing import inserts, legacy_writers, trajectory_writers


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    """Returns a program that both packages should run alike."""
    names = ["t0", "t1"][: draw(st.integers(1, 2))]
    made = [draw(tables(name)) for name in names]
    schema = draw(schemas)
    write = st.one_of(
        inserts(names, schema),
        legacy_writers(names, schema),
        trajectory_writers(names, schema),
        trajectory_writers(names, schema),
        structured_writers(names, schema),
    )
    read = st.one_of(samples(made), datasets(made, schema), datasets(made, schema))
    first = draw(st.lists(write, min_size=1, max_size=4))
    more = draw(st.lists(st.one_of(read, read, write, controls(names)), min_size=2, max_size=7))
    return {
        "place": draw(st.sampled_from(["in_process", "remote"])),
        "schema": schema,
        "tables": made,
        "steps": first + more,
    }
