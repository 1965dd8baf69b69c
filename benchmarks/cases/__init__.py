# SPDX-License-Identifier: Apache-2.0
"""The benchmark cases. A case runs in a process of its own and returns figures by metric name."""

from __future__ import annotations

from cases import (
    checkpoint,
    datasets,
    inserting,
    latency,
    memory,
    mixed,
    priorities,
    sampling,
    startup,
    table_size,
    tensorflow_client,
    tf_agents,
    vectorized,
)
from cases.case import Case, Metric

ALL: tuple[Case, ...] = (
    *inserting.CASES,
    *vectorized.CASES,
    *sampling.CASES,
    *datasets.CASES,
    *priorities.CASES,
    *tensorflow_client.CASES,
    *tf_agents.CASES,
    *table_size.CASES,
    *memory.CASES,
    *latency.CASES,
    *startup.CASES,
    *mixed.CASES,
    *checkpoint.CASES,
)


def by_name(name: str) -> Case:
    """Returns the case called `name`."""
    return {case.name: case for case in ALL}[name]


__all__ = ["ALL", "Case", "Metric", "by_name"]
