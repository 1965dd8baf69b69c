# SPDX-License-Identifier: Apache-2.0
"""Tables for the items of adders.

A table checks items against its signature. The adders make it from the specs of the environment:

    signature = adders.NStepTransitionAdder.signature(make_environment_spec(environment))
    table = make_prioritized_table(signature, max_size=1_000_000, priority_exponent=0.6)
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

import reverb
from reverb.adapters.acme.adders.base import DEFAULT_PRIORITY_TABLE
from reverb.errors import InvalidArgumentError

__all__ = [
    "disable_insert_blocking",
    "make_prioritized_table",
    "make_queue_table",
    "make_replay_table",
]

# Default of `error_buffer`, relative to the samples for the first `min_size_to_sample` items.
_TOLERANCE_RATE = 0.1


def make_replay_table(
    signature: Any,
    *,
    name: str = DEFAULT_PRIORITY_TABLE,
    max_size: int = 1_000_000,
    min_size_to_sample: int = 1,
    samples_per_insert: float | None = None,
    error_buffer: float | None = None,
    sampler: Any = None,
    seed: int | None = None,
) -> reverb.Table:
    """Makes a table that samples uniformly, and evicts the oldest item when it is full.

    Args:
      signature: Nest of specs of the items; see `signature` of the adders.
      name: Name of the table.
      max_size: Maximum number of items.
      min_size_to_sample: Samples wait until the table has this many items.
      samples_per_insert: Keeps samples and inserts in this ratio: the faster side waits. `None`:
        no ratio.
      error_buffer: Maximum deviation from the ratio, in samples; default: a tenth of the samples
        for `min_size_to_sample` items, but at least what the limiter requires.
      sampler: Selector of the items to sample; `None`: uniform.
      seed: Makes the random choices reproducible.

    Raises:
      InvalidArgumentError: If a number is out of its range.
    """
    limiter = (
        reverb.rate_limiters.MinSize(min_size_to_sample)
        if samples_per_insert is None
        else _ratio(samples_per_insert, min_size_to_sample, error_buffer)
    )
    return reverb.Table(
        name=name,
        sampler=reverb.selectors.Uniform() if sampler is None else sampler,
        remover=reverb.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=limiter,
        signature=signature,
        seed=seed,
    )


def make_prioritized_table(
    signature: Any, *, priority_exponent: float = 0.6, **options: Any
) -> reverb.Table:
    """Makes a table that samples in proportion to priority ^ exponent.

    As in "Prioritized Experience Replay", section 3.3. The adder sets the priority of a new item,
    1.0 by default; `client.mutate_priorities` updates it.

    Args:
      signature: See `make_replay_table`.
      priority_exponent: 0 samples uniformly.
      **options: Arguments of `make_replay_table`.

    Raises:
      InvalidArgumentError: If a number is out of its range.
    """
    sampler = reverb.selectors.Prioritized(priority_exponent)
    return make_replay_table(signature, sampler=sampler, **options)


def make_queue_table(
    signature: Any, *, max_size: int, name: str = DEFAULT_PRIORITY_TABLE
) -> reverb.Table:
    """Makes a queue: every item is sampled once, in order; inserts wait while it is full.

    Args:
      signature: See `make_replay_table`.
      max_size: Maximum number of items.
      name: Name of the table.
    """
    return reverb.Table.queue(name=name, max_size=max_size, signature=signature)


def disable_insert_blocking(
    tables: Sequence[reverb.Table],
) -> tuple[list[reverb.Table], list[int]]:
    """Makes tables whose inserts never wait, for programs that insert and learn in one thread.

    Such a program deadlocks if an insert waits for samples. Instead the program keeps the ratio: it
    learns while `table.can_sample(size)` is true, with the sizes that are returned here.

    Args:
      tables: Tables that are not served yet.

    Returns:
      New tables that differ only in the limiter's `max_diff`; and a size for each of them: half of
      `max_diff - min_diff`, in samples, or 1 if it had no limits.
    """
    unblocked, sample_sizes = [], []
    for table in tables:
        limiter = table.info.rate_limiter_info
        half = (limiter.max_diff - limiter.min_diff) / 2
        # A limiter without limits has the largest float as its limits.
        is_bounded = math.isfinite(half) and half < sys.float_info.max / 2
        sample_sizes.append(max(1, int(half)) if is_bounded else 1)
        unblocked.append(
            table.replace(
                rate_limiter=reverb.rate_limiters.RateLimiter(
                    samples_per_insert=limiter.samples_per_insert,
                    min_size_to_sample=limiter.min_size_to_sample,
                    min_diff=limiter.min_diff,
                    max_diff=sys.float_info.max,
                )
            )
        )
    return unblocked, sample_sizes


def _ratio(
    samples_per_insert: float, min_size_to_sample: int, error_buffer: float | None
) -> reverb.rate_limiters.RateLimiter:
    if not samples_per_insert > 0:
        raise InvalidArgumentError(
            f"samples_per_insert must be greater than 0 or None, got {samples_per_insert}"
        )
    if error_buffer is None:
        tolerated = _TOLERANCE_RATE * samples_per_insert * min_size_to_sample
        error_buffer = max(tolerated, 2 * max(1.0, samples_per_insert))
    return reverb.rate_limiters.SampleToInsertRatio(
        samples_per_insert=samples_per_insert,
        min_size_to_sample=min_size_to_sample,
        error_buffer=error_buffer,
    )
