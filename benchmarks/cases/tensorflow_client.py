# SPDX-License-Identifier: Apache-2.0
"""The ops of `TFClient`, called eagerly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import actors
import measure
import numpy as np
import payloads
from servers import ServerUnderTest, TableSpec, open_server

from cases.case import Case, Metric
from cases.sampling import BATCH

Figures = Mapping[str, measure.Figure]

_ITEMS = 1_000


def _filled(server: ServerUnderTest) -> Any:
    """Fills the table and returns a `TFClient`."""
    import reverb

    actors.TrajectoryActor(server.client, payloads.SMALL).write(_ITEMS)
    return reverb.TFClient(server.address)


def _sample(scale: measure.Scale, *, where: str) -> Figures:
    import tensorflow as tf

    dtypes = [tf.as_dtype(value.dtype) for _, value in sorted(payloads.SMALL.make(0).items())]
    with open_server(where) as server:
        client = _filled(server)

        def sample(count: int) -> None:
            for _ in range(count):
                received = client.sample("table", dtypes)
            # The first step of an item; the check requires a time axis.
            payloads.SMALL.require([np.asarray(column)[None] for column in received.data])

        return {"rate": measure.rate(sample, scale, server_cpu=server.cpu_seconds)}


def _update_priorities(scale: measure.Scale, *, where: str) -> Figures:
    import tensorflow as tf

    with open_server(where, [TableSpec(sampler="prioritized", max_size=_ITEMS)]) as server:
        client = _filled(server)
        # Samples are drawn with replacement: ten times as many as needed have enough keys.
        samples = server.client.sample("table", 10 * _ITEMS, emit_timesteps=False)
        keys = np.unique(np.asarray([sample.info.key for sample in samples], np.uint64))[:BATCH]
        if len(keys) != BATCH:
            raise ValueError(f"only {len(keys)} different keys came back")
        given = tf.constant(keys)
        priorities = tf.constant(np.linspace(0.5, 10.0, BATCH))

        def update(count: int) -> None:
            for _ in range(count):
                client.update_priorities("table", given, priorities)

        figure = measure.rate(update, scale, server_cpu=server.cpu_seconds, per_call=BATCH)
        _require_priorities(server.client, dict(zip(keys, priorities.numpy(), strict=True)))
    return {"rate": figure}


def _require_priorities(client: Any, expected: Mapping[np.uint64, float]) -> None:
    for sample in client.sample("table", 10 * _ITEMS, emit_timesteps=False):
        if sample.info.priority != expected.get(np.uint64(sample.info.key), 1.0):
            raise ValueError(f"priority of {sample.info.key} is {sample.info.priority}")


def _case(operation: str, description: str, run: Any, unit: str, where: str) -> Case:
    return Case(
        f"tf_client_{operation}_{where}",
        description + ("." if where == "remote" else "; client and server in one process."),
        partial(run, where=where),
        (Metric("rate", unit, target_ratio=2),),
        needs=("tensorflow",),
    )


CASES = tuple(
    _case(operation, description, run, unit, where)
    for operation, description, run, unit in (
        ("sample", "TFClient.sample of one small item", _sample, "samples/s"),
        (
            "update_priorities",
            "TFClient.update_priorities of 256 keys out of 1e3",
            _update_priorities,
            "updates/s",
        ),
    )
    for where in ("remote", "in_process")
)
