# SPDX-License-Identifier: Apache-2.0
"""Whole programs: tables, and steps that write, read and change them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from strategies.control import controls
from strategies.reading import backpressures, datasets, samples, tf_samples
from strategies.schemas import has_list, schemas
from strategies.structured import pattern_datasets, structured_writers
from strategies.tables import tables
from strategies.writing import inserts, legacy_writers, tf_inserts, trajectory_writers


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    """Returns a program that both packages should run alike."""
    names = ["t0", "t1"][: draw(st.integers(1, 2))]
    made = [draw(tables(name)) for name in names]
    schema = draw(schemas)
    servers = draw(st.sampled_from([1, 1, 1, 2]))
    # Items of one length can be batched; most programs have no others.
    length = draw(st.sampled_from([None, 2, 2, 3, 4, 1]))
    makers = {
        "insert": inserts(names, schema),
        "write": legacy_writers(names, schema, length),
        "trajectory": trajectory_writers(names, schema, length),
        "structured": structured_writers(names, schema, length),
        "sample": samples(made),
        "dataset": datasets(made, schema, uneven=length is None),
        "control": controls(names),
        "tf_insert": tf_inserts(names),
        "tf_sample": tf_samples(made),
        "pattern": pattern_datasets(schema, length),
        "backpressure": backpressures(made),
    }

    def steps(kinds: list[str], least: int, most: int) -> list[dict[str, Any]]:
        kinds_drawn = draw(st.lists(st.sampled_from(kinds), min_size=least, max_size=most))
        made_steps = [draw(makers[kind]) for kind in kinds_drawn]
        return [{**step, "server": draw(st.integers(0, servers - 1))} for step in made_steps]

    writers = ["trajectory", "write", "trajectory", "structured", "insert", "tf_insert"]
    more = ["dataset"] * 6 + ["sample"] * 2 + ["control"] * 5 + writers
    more += ["tf_sample", "backpressure"]
    # The original cannot iterate over a `PatternDataset` whose structure has a list.
    more += [] if has_list(schema) else ["pattern"]
    return {
        "place": draw(st.sampled_from(["in_process", "remote", "remote"])),
        "servers": servers,
        "schema": schema,
        "tables": made,
        "steps": steps(writers, 2, 4) + steps(more, 2, 7),
    }
