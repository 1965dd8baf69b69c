# SPDX-License-Identifier: Apache-2.0
"""Reading through TensorFlow: `TrajectoryDataset` in batches and one item at a time."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import actors
import measure
import numpy as np
import payloads
from servers import ServerUnderTest, open_server

from cases.case import Case, Metric, items_per_second
from cases.inserting import table_for
from cases.sampling import BATCH

Figures = Mapping[str, measure.Figure]

# Batches that TensorFlow prefetches. A larger buffer would only hold older samples.
_PREFETCH = 2
_NEEDS = ("tensorflow",)
# Until then TensorFlow sizes its buffers, and the memory of batches is new from the system.
_SETTLING_BATCHES = 16
_SETTLING_SECONDS = 1.0


def dataset(
    address: str,
    payload: payloads.Payload,
    *,
    workers: int = 1,
    in_flight: int = 2 * BATCH,
    family: str = "TrajectoryDataset",
) -> Any:
    """Returns a `TrajectoryDataset` of a table of `payload`, or a `TimestepDataset`.

    The documentation of dm-reverb recommends two batches in flight.
    """
    import tensorflow as tf

    import reverb

    step = payload.make(0)
    leading = [payload.steps_per_item] if family == "TrajectoryDataset" else []
    return getattr(reverb, family)(
        server_address=address,
        table="table",
        dtypes={name: tf.as_dtype(value.dtype) for name, value in step.items()},
        shapes={name: tf.TensorShape([*leading, *value.shape]) for name, value in step.items()},
        max_in_flight_samples_per_worker=in_flight,
        num_workers_per_iterator=workers,
    )


def batches(address: str, payload: payloads.Payload, *, size: int, workers: int) -> Iterator[Any]:
    """Returns an iterator over prefetched batches, each a `ReplaySample` of arrays `[B, ...]`."""
    samples = dataset(address, payload, workers=workers, in_flight=2 * size)
    return iter(samples.batch(size, drop_remainder=True).prefetch(_PREFETCH))


def require_batch(payload: payloads.Payload, batch: Any, size: int) -> None:
    """Raises `ValueError` unless a batch has `size` different items of `payload`."""
    columns = [np.asarray(batch.data[name]) for name in sorted(batch.data)]
    keys = np.asarray(batch.info.key)
    if keys.dtype != np.uint64 or len(keys) != size or any(len(c) != size for c in columns):
        raise ValueError(f"a batch of {size} has keys {keys.shape}, {[c.shape for c in columns]}")
    probabilities = np.asarray(batch.info.probability)
    if not np.all((probabilities > 0) & (probabilities <= 1)):
        raise ValueError(f"probabilities are {probabilities}")
    for row in (0, size // 2, size - 1):
        payload.require([column[row] for column in columns])


def _filled(server: ServerUnderTest, payload: payloads.Payload, items: int) -> None:
    actors.TrajectoryActor(server.client, payload).write(items)


def _batched(
    scale: measure.Scale,
    *,
    where: str,
    payload: payloads.Payload,
    items: int = 10_000,
    sampler: str = "uniform",
    workers: int = 1,
    size: int = BATCH,
) -> Figures:
    table = dataclasses.replace(table_for(payload), sampler=sampler)
    with open_server(where, [table]) as server:
        _filled(server, payload, items)
        # The last reference: the iterator must be deleted before the server stops.
        figure = _rate_of(
            batches(server.address, payload, size=size, workers=workers),
            payload,
            size,
            scale,
            server,
        )
    return {"rate": figure}


def _rate_of(
    iterator: Iterator[Any],
    payload: payloads.Payload,
    size: int,
    scale: measure.Scale,
    server: ServerUnderTest,
) -> measure.Figure:
    _settle(iterator)

    def read(count: int) -> None:
        for _ in range(count):
            batch = next(iterator)
        require_batch(payload, batch, size)

    return measure.rate(read, scale, server_cpu=server.cpu_seconds, per_call=size)


def _settle(iterator: Iterator[Any]) -> None:
    until = time.perf_counter() + _SETTLING_SECONDS
    for read in itertools.count(1):
        next(iterator)
        if read >= _SETTLING_BATCHES and time.perf_counter() >= until:
            return


def _one_at_a_time(
    scale: measure.Scale, *, payload: payloads.Payload, items: int, in_flight: int, stride: int
) -> Figures:
    """TensorFlow's own loop consumes the items and passes every `stride`-th one to Python."""
    with open_server("remote", [table_for(payload)]) as server:
        _filled(server, payload, items)
        samples = dataset(server.address, payload, in_flight=in_flight)
        return {
            "rate": _rate_of_shard(iter(samples.shard(stride, 0)), payload, stride, scale, server)
        }


def _rate_of_shard(
    iterator: Iterator[Any],
    payload: payloads.Payload,
    stride: int,
    scale: measure.Scale,
    server: ServerUnderTest,
) -> measure.Figure:
    _settle(iterator)

    def read(count: int) -> None:
        for _ in range(count):
            sample = next(iterator)
        payload.require([sample.data[name] for name in sorted(sample.data)])

    return measure.rate(read, scale, server_cpu=server.cpu_seconds, per_call=stride)


def _new_iterator(
    scale: measure.Scale, *, where: str, family: str, derive: Callable[[Any], Any]
) -> Figures:
    """Measures `next(iter(dataset))`, without making the dataset, until the iterator is gone."""
    with open_server(where) as server:
        _filled(server, payloads.SMALL, 1_000)
        samples = derive(dataset(server.address, payloads.SMALL, family=family))
        durations = []
        for _ in range(20 if scale.quick else 200):
            started = time.perf_counter()
            sample = next(iter(samples))
            durations.append(time.perf_counter() - started)
        if sorted(sample.data) != sorted(payloads.SMALL.make(0)):
            raise ValueError(f"the sample has the columns {sorted(sample.data)}")
    # The first one traces functions, which is done once per program.
    measured = durations[1:]
    return {
        "p50": measure.Figure(statistics.median(measured), operations=len(measured)),
        "mean": measure.Figure(statistics.mean(measured), operations=len(measured)),
    }


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The data of a dataset, and the target ratios."""

    payload: payloads.Payload
    words: str
    items: int
    remote: float
    in_process: float
    size: int = BATCH


_KINDS = {
    "small": _Kind(payloads.SMALL, "small items", 10_000, remote=6, in_process=5),
    "atari_random": _Kind(
        payloads.ATARI_RANDOM, "five frames of noise", 3_000, remote=1.5, in_process=2
    ),
    "atari_sparse": _Kind(
        payloads.ATARI_SPARSE, "five mostly black frames", 3_000, remote=1.5, in_process=2
    ),
    "large": _Kind(payloads.LARGE, "items of 400 kB", 300, remote=1.3, in_process=1.2),
    "large_batch_32": _Kind(
        payloads.LARGE, "items of 400 kB", 300, remote=1.3, in_process=1.2, size=32
    ),
}
_WHERE = {"remote": "server in its own process", "in_process": "server in the same process"}


def _case(name: str, where: str, *, sampler: str = "uniform", workers: int = 1) -> Case:
    kind = _KINDS[name]
    middle = ("_prioritized" if sampler == "prioritized" else "") + (
        f"_{workers}_workers" if workers > 1 else ""
    )
    return Case(
        f"dataset_{name}{middle}_{where}",
        f"TrajectoryDataset of {kind.words}, batches of {kind.size}, prefetched, {sampler}, "
        f"{workers} worker{'s' if workers > 1 else ''}; {_WHERE[where]}.",
        partial(
            _batched,
            where=where,
            payload=kind.payload,
            items=kind.items,
            sampler=sampler,
            workers=workers,
            size=kind.size,
        ),
        (items_per_second(target_ratio=getattr(kind, where)),),
        needs=_NEEDS,
    )


_ITERATORS: Mapping[str, tuple[str, str, Callable[[Any], Any]]] = {
    "plain": ("TrajectoryDataset", "", lambda dataset: dataset),
    "take": ("TrajectoryDataset", ".take(1)", lambda dataset: dataset.take(1)),
    "batch": ("TrajectoryDataset", ".batch(4)", lambda dataset: dataset.batch(4)),
    "batch_take": ("TrajectoryDataset", ".batch(4).take(1)", lambda d: d.batch(4).take(1)),
    "prefetch": ("TrajectoryDataset", ".prefetch(2)", lambda dataset: dataset.prefetch(2)),
    "steps": ("TimestepDataset", "", lambda dataset: dataset),
    "steps_batch": ("TimestepDataset", ".batch(4)", lambda dataset: dataset.batch(4)),
}

CASES = (
    *(_case(name, where) for name in _KINDS for where in _WHERE),
    *(_case("small", where, sampler="prioritized") for where in _WHERE),
    *(_case(name, where, workers=4) for name in ("small", "atari_random") for where in _WHERE),
    _case("large_batch_32", "remote", workers=4),
    Case(
        "dataset_small_one_at_a_time_remote",
        "TrajectoryDataset without batches, read by TensorFlow's own loop: small items.",
        partial(_one_at_a_time, payload=payloads.SMALL, items=10_000, in_flight=512, stride=BATCH),
        (items_per_second(target_ratio=1.5),),
        needs=_NEEDS,
    ),
    Case(
        "dataset_large_one_at_a_time_remote",
        "TrajectoryDataset without batches, read by TensorFlow's own loop: items of 400 kB.",
        partial(_one_at_a_time, payload=payloads.LARGE, items=300, in_flight=32, stride=8),
        (items_per_second(),),
        needs=_NEEDS,
    ),
    *(
        Case(
            f"dataset_new_iterator_{name}_{where}",
            f"next(iter({family}{words})), as often as a program that makes an iterator for each "
            f"training step; {_WHERE[where]}.",
            partial(_new_iterator, where=where, family=family, derive=derive),
            (
                Metric("p50", "s", lower_is_better=True, target_ratio=2),
                Metric("mean", "s", lower_is_better=True, target_ratio=2),
            ),
            needs=_NEEDS,
        )
        for name, (family, words, derive) in _ITERATORS.items()
        for where in _WHERE
    ),
)
