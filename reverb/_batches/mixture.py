# SPDX-License-Identifier: Apache-2.0
"""Sources that combine several tables by weight, for prefetching iterators."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reverb import errors
from reverb._batches.prefetching import Pipe, Source
from reverb.shown_text import type_name

__all__ = ["by_batch", "by_item", "positive_weights", "shares"]


def positive_weights(table: str | Mapping[str, float]) -> dict[str, float]:
    """Returns the weights of tables, without those that are 0.

    Raises:
      InvalidArgumentError: If a weight is negative or not finite, or if none is positive.
      TypeError: If `table` is neither a name nor a mapping.
    """
    if isinstance(table, str):
        return {table: 1.0}
    if not isinstance(table, Mapping):
        raise TypeError(f"table must be a name, or weights by name, got {type_name(table)}")
    if any(not (math.isfinite(weight) and weight >= 0) for weight in table.values()):
        raise errors.InvalidArgumentError(
            f"the weights of tables must be at least 0 and finite, got {dict(table)}"
        )
    weights = {name: float(weight) for name, weight in table.items() if weight > 0}
    if not weights:
        raise errors.InvalidArgumentError(
            f"table must have at least one table with a positive weight, got {dict(table)}"
        )
    return weights


def by_batch(sources: Sequence[Source], weights: Sequence[float], seed: int | None) -> Source:
    """Mixes sources: each element comes from one of them, drawn by weight."""
    if len(sources) == 1:
        return sources[0]
    random = np.random.default_rng(seed)
    probabilities = np.asarray(weights) / sum(weights)

    def mixed(count: int, pipe: Pipe) -> Iterator[Any]:
        for index in random.choice(len(sources), size=count, p=probabilities):
            elements = list(sources[index](1, pipe))
            if not elements:
                return
            yield elements[0]

    return mixed


def by_item(
    make_parts: Mapping[str, Callable[[int, Pipe], Any]],
    join: Callable[[dict[str, Any]], Any],
    cut_off: Callable[[dict[str, Any]], Any],
    weights: Sequence[float],
    batch_size: int,
    seed: int | None,
) -> Source:
    """Mixes tables: each element has rows of all of them, see `shares`.

    A function of `make_parts` returns a number of rows of its table, or `None` at the end. `join`
    makes a batch of the parts, by table. When a table has no more, `cut_off` makes the last batch
    of the parts sampled so far, or raises an error with these samples.
    """
    random = np.random.default_rng(seed)
    has_ended = False

    def mixed(count: int, pipe: Pipe) -> Iterator[Any]:
        nonlocal has_ended
        for _ in range(count):
            if has_ended:
                return
            parts = {}
            numbers = shares(weights, batch_size, random)
            for table, rows in zip(make_parts, numbers, strict=True):
                if rows:
                    part = make_parts[table](rows, pipe)
                    if part is None:
                        has_ended = True
                        if parts:
                            yield cut_off(parts)
                        return
                    parts[table] = part
            yield join(parts)

    return mixed


def shares(weights: Sequence[float], total: int, random: "np.random.Generator") -> list[int]:
    """Divides `total` rows by weight.

    Each share is its exact part, rounded down or up, and on average the exact part: systematic
    sampling, with one random number for all shares.
    """
    ends = np.cumsum(weights) * (total / sum(weights)) + random.random()
    # The last end is `total` plus the random number, but for rounding.
    bounds = np.floor(ends).astype(np.int64)
    bounds[-1] = total
    return np.diff(bounds, prepend=0).tolist()
