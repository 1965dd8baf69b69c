# SPDX-License-Identifier: Apache-2.0
"""Calls that must fail, each by a name. Those that abort the original's process are not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import reverb

_STEP = [np.int64(1)]


def _table(**changes: Any) -> Any:
    fifo = reverb.selectors.Fifo
    settings = {"name": "t", "sampler": fifo(), "remover": fifo(), "max_size": 5}
    limiter = reverb.rate_limiters.MinSize(1)
    return reverb.Table(**{**settings, "rate_limiter": limiter, **changes})


def _ratio(*numbers: Any) -> Any:
    return reverb.rate_limiters.SampleToInsertRatio(*numbers)


def _dataset(**changes: Any) -> Any:
    options = {"dtypes": [tf.int64], "shapes": [tf.TensorShape([])]}
    options["max_in_flight_samples_per_worker"] = 1
    return reverb.TimestepDataset("localhost:1", "t", **{**options, **changes})


def _write(client: Any, *item: Any) -> None:
    writer = client.writer(2)
    try:
        writer.append(_STEP)
        writer.create_item(*item)
    finally:
        writer.close()


def _closed(client: Any) -> Any:
    writer = client.writer(2)
    writer.close()
    return writer


def _trajectory(client: Any, use: Callable[[Any], Any]) -> None:
    writer = client.trajectory_writer(2)
    writer.append(_STEP)
    try:
        use(writer)
    finally:
        writer.close()


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "sample unknown table": lambda c: list(c.sample("nope")),
    "sample unknown table nested": lambda c: list(c.sample("nope", unpack_as_table_signature=True)),
    "sample none": lambda c: list(c.sample("t0", 0)),
    "sample below none": lambda c: list(c.sample("t0", -2)),
    "insert nowhere": lambda c: c.insert(_STEP, {}),
    "insert unknown table": lambda c: c.insert(_STEP, {"nope": 1.0}),
    "insert text priority": lambda c: c.insert(_STEP, {"t0": "1"}),
    "insert NaN": lambda c: c.insert(_STEP, {"t0": float("nan")}),
    "insert object": lambda c: c.insert([object()], {"t0": 1.0}),
    "insert None": lambda c: c.insert([None], {"t0": 1.0}),
    "insert date": lambda c: c.insert([np.datetime64("2020-01-01")], {"t0": 1.0}),
    "insert huge": lambda c: c.insert([2**70], {"t0": 1.0}),
    "reset unknown table": lambda c: c.reset("nope"),
    "mutate unknown table": lambda c: c.mutate_priorities("nope", {1: 1.0}),
    "mutate negative key": lambda c: c.mutate_priorities("t0", {-1: 1.0}),
    "mutate float key": lambda c: c.mutate_priorities("t0", {1.5: 1.0}),
    "mutate text priority": lambda c: c.mutate_priorities("t0", {1: "1"}),
    "delete negative key": lambda c: c.mutate_priorities("t0", deletes=[-1]),
    "info float timeout": lambda c: c.server_info(1.5),
    "writer no steps": lambda c: c.writer(0),
    "writer long chunks": lambda c: c.writer(2, chunk_length=3),
    "writer no chunks": lambda c: c.writer(2, chunk_length=0),
    "writer no items": lambda c: c.writer(2, max_in_flight_items=0),
    "item unknown table": lambda c: _write(c, "nope", 1, 1.0),
    "item no steps": lambda c: _write(c, "t0", 0, 1.0),
    "item many steps": lambda c: _write(c, "t0", 2, 1.0),
    "item NaN": lambda c: _write(c, "t0", 1, float("nan")),
    "closed append": lambda c: _closed(c).append(_STEP),
    "closed create_item": lambda c: _closed(c).create_item("t0", 1, 1.0),
    "closed flush": lambda c: _closed(c).flush(),
    "closed close": lambda c: _closed(c).close(),
    "sequence empty": lambda c: c.writer(2).append_sequence([]),
    "sequence of scalars": lambda c: c.writer(2).append_sequence([np.int64(1)]),
    "sequence uneven": lambda c: c.writer(2).append_sequence([np.zeros(2), np.zeros(3)]),
    "trajectory no refs": lambda c: c.trajectory_writer(0),
    "trajectory history early": lambda c: c.trajectory_writer(1).history,
    "trajectory unknown table": lambda c: _trajectory(
        c, lambda w: w.create_item("nope", 1.0, w.history[0][-1:])
    ),
    "trajectory NaN": lambda c: _trajectory(
        c, lambda w: w.create_item("t0", float("nan"), w.history[0][-1:])
    ),
    "trajectory empty": lambda c: _trajectory(c, lambda w: w.create_item("t0", 1.0, {})),
    "trajectory of arrays": lambda c: _trajectory(c, lambda w: w.create_item("t0", 1.0, _STEP)),
    "trajectory text priority": lambda c: _trajectory(
        c, lambda w: w.create_item("t0", "1", w.history[0][-1:])
    ),
    "history beyond": lambda c: _trajectory(c, lambda w: w.history[0][2]),
    "history by text": lambda c: _trajectory(c, lambda w: w.history[0]["a"]),
    "history before": lambda c: _trajectory(c, lambda w: w.history[0][-2]),
    "configure no refs": lambda c: _trajectory(
        c, lambda w: w.configure((0,), num_keep_alive_refs=0, max_chunk_length=1)
    ),
    "configure long chunks": lambda c: _trajectory(
        c, lambda w: w.configure((0,), num_keep_alive_refs=1, max_chunk_length=2)
    ),
    "flush negative": lambda c: _trajectory(c, lambda w: w.flush(-1)),
    "structured nothing": lambda c: c.structured_writer([]),
    "table no name": lambda c: _table(name=""),
    "table no size": lambda c: _table(max_size=0),
    "table signature": lambda c: _table(signature=[object()]),
    "table limiter": lambda c: _table(rate_limiter=1),
    "server no tables": lambda c: reverb.Server([]),
    "server twins": lambda c: reverb.Server([_table(), _table()]),
    "limiter size": lambda c: reverb.rate_limiters.MinSize(0),
    "limiter ratio": lambda c: _ratio(0.0, 1, 1.0),
    "limiter narrow": lambda c: _ratio(2.0, 1, 1.0),
    "limiter range": lambda c: _ratio(1.0, 1, (2.0, 9.0)),
    "limiter no size": lambda c: _ratio(1.0, 0, 5.0),
    "dataset in flight": lambda c: _dataset(max_in_flight_samples_per_worker=0),
    "dataset workers": lambda c: _dataset(num_workers_per_iterator=0),
    "dataset stream": lambda c: _dataset(max_samples_per_stream=0),
    "dataset timeout": lambda c: _dataset(rate_limiter_timeout_ms=-2),
    "dataset samples": lambda c: _dataset(max_samples=0),
    "dataset structure": lambda c: _dataset(shapes=[]),
    "dataset unknown table": lambda c: list(
        reverb.TimestepDataset(c.server_address, "nope", [tf.int64], [tf.TensorShape([])], 1)
    ),
    "signature unknown table": lambda c: reverb.TrajectoryDataset.from_table_signature(
        c.server_address, "nope", 1
    ),
    "tf sample unknown table": lambda c: reverb.TFClient(c.server_address).sample(
        "nope", [tf.int64]
    ),
    "tf insert unknown table": lambda c: reverb.TFClient(c.server_address).insert(
        [tf.constant(1)], tf.constant(["nope"]), tf.constant([1.0], tf.float64)
    ),
    "tf insert priorities": lambda c: reverb.TFClient(c.server_address).insert(
        [tf.constant(1)], tf.constant(["t0"]), tf.constant([1.0], tf.float32)
    ),
    "tf insert uneven": lambda c: reverb.TFClient(c.server_address).insert(
        [tf.constant(1)], tf.constant(["t0"]), tf.constant([1.0, 2.0], tf.float64)
    ),
    "tf update unknown table": lambda c: reverb.TFClient(c.server_address).update_priorities(
        "nope", tf.constant([1], tf.uint64), tf.constant([1.0], tf.float64)
    ),
    "tf update keys": lambda c: reverb.TFClient(c.server_address).update_priorities(
        "t0", tf.constant([1], tf.int64), tf.constant([1.0], tf.float64)
    ),
    "tf update uneven": lambda c: reverb.TFClient(c.server_address).update_priorities(
        "t0", tf.constant([1, 2], tf.uint64), tf.constant([1.0], tf.float64)
    ),
}
