# SPDX-License-Identifier: Apache-2.0
"""Batches for learners, as NumPy arrays.

Replaces `from acme import datasets`. A `ReplayDataset` replaces Acme's `tf.data.Dataset`:
`dataset.as_numpy_iterator()`, `iter(dataset)` and `datasets.NumpyIterator(dataset)` are iterators
over samples that a background thread prefetches.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import reverb
from reverb import BatchIterator, Window, errors
from reverb.adapters.acme.adders.base import DEFAULT_PRIORITY_TABLE, Step
from reverb.adapters.acme.types import Transition
from reverb.client import Client
from reverb.replay_sample import ReplaySample, SampleInfo

__all__ = ["NumpyIterator", "ReplayDataset", "make_reverb_dataset"]

# Default prefetch of Acme's pipeline: items without batches, or batches.
_DEFAULT_ITEMS_AHEAD = 100
_DEFAULT_BATCHES_AHEAD = 2


@dataclasses.dataclass(frozen=True, eq=False)
class ReplayDataset:
    """A dataset of samples; made by `make_reverb_dataset`.

    Every iterator prefetches separately, from the moment it is made.

    Example:
      >>> dataset = make_reverb_dataset(client.server_address, batch_size=2, table="table")
      >>> with dataset.as_numpy_iterator() as iterator:
      ...     for _ in range(3):
      ...         observation, reward = next(iterator).data
      >>> observation.shape
      (2, 1, 4)
    """

    _arguments: tuple[Any, ...]
    _options: Mapping[str, Any]
    _size: int
    _functions: tuple[Callable[[Any], Any], ...]

    def __iter__(self) -> BatchIterator:
        transform = self._transformed if self._functions else None
        return reverb.batches(
            *self._arguments, prefetch=self._size, transform=transform, **self._options
        )

    def as_numpy_iterator(self) -> BatchIterator:
        """Makes a new iterator."""
        return iter(self)

    def map(self, function: Callable[[Any], Any]) -> "ReplayDataset":
        """Makes a dataset of `function(element)`, which is called in the prefetching thread.

        Use it to move batches to a device ahead of time: `jax.device_put`, or
        `functools.partial(jax.device_put, device=sharding)`. `info.key` is then a `jax.Array` too,
        with only 32 bits unless JAX is configured for 64. To update priorities later, map
        `lambda sample: sample._replace(data=jax.device_put(sample.data))`.
        """
        return dataclasses.replace(self, _functions=(*self._functions, function))

    def prefetch(self, size: int) -> "ReplayDataset":
        """Makes the same dataset with a prefetch of `size` elements; `None` or less than 1: 1.

        Elements that are prefetched count as sampled; see `make_reverb_dataset`.
        """
        return dataclasses.replace(self, _size=max(1, size or 1))

    def _transformed(self, element: Any) -> Any:
        for function in self._functions:
            element = function(element)
        return element


def make_reverb_dataset(
    server_address: str | Client,
    batch_size: int | None = None,
    prefetch_size: int | None = None,
    table: str | Mapping[str, float] = DEFAULT_PRIORITY_TABLE,
    num_parallel_calls: int | None = 12,
    max_in_flight_samples_per_worker: int | None = None,
    postprocess: Callable[[ReplaySample], Any] | None = None,
    environment_spec: Any = None,
    extra_spec: Any = None,
    transition_adder: bool = False,
    convert_zero_size_to_none: bool = False,
    using_deprecated_adder: bool = False,
    sequence_length: int | None = None,
    *,
    end_after_ms: int | None = None,
    timeout_ms: int | None = None,
    container_types: Sequence[type] = (Step, Transition),
    seed: int | None = None,
    window: Window | None = None,
) -> ReplayDataset:
    """Makes a dataset of samples of one or several tables, in batches.

    Elements are a `ReplaySample`: `info` has arrays `[B]`, `data` is nested like the table's
    signature with arrays `[B, ...]` (a flat list if the table has no signature). Without
    `batch_size` they are single items without the first dimension.

    Prefetched elements count as sampled: with `SampleToInsertRatio` the learner sees the newest
    data that much later, and a table with `max_times_sampled` is emptied that much earlier. At most
    `prefetch_size` elements (see below for its default) are in flight or queued at any moment;
    Acme's pipeline has 12 times as many.

    Args:
      server_address: Address of the server, or a client.
      batch_size: Number of items in a batch, `B`.
      prefetch_size: Number of elements to prefetch. `None` or 0: as many as correspond to
        `max_in_flight_samples_per_worker` items, at least 1; by default 2 batches, or 100 items
        without batches.
      table: Name of the table, or weights by name, from which one table is drawn for each batch.
      num_parallel_calls: Ignored: one request fetches all items of a batch.
      max_in_flight_samples_per_worker: See `prefetch_size`.
      postprocess: Called in the background with every single item; its results are stacked. Items
        may differ in length if the results do not. Without it, batches are stacked while they are
        fetched, which is many times faster: prefer `dataset.map`, which is called with whole
        batches.
      environment_spec: No longer supported, as in Acme.
      extra_spec: No longer supported, as in Acme.
      transition_adder: Ignored, as in Acme.
      convert_zero_size_to_none: Ignored, as in Acme.
      using_deprecated_adder: Ignored, as in Acme.
      sequence_length: Ignored, as in Acme.
      end_after_ms: Iterators end if the rate limiter allows no sample for this long, in
        milliseconds; `None`: never.
      timeout_ms: How long `next` waits for an element until it raises `DeadlineExceededError`,
        which says what it waited for; in milliseconds. `None`: no limit; after 10 s the log says
        why; 0: it does not wait.
      container_types: Named tuple classes for `data`, matched by name and fields. Use
        `[acme.types.Transition]` to get Acme's class.
      seed: Makes the choice between tables reproducible.
      window: Samples a random window of the steps of each item, as of an `EpisodeAdder`, see
        `Client.sample_batch`. `info` of the batches is a `reverb.BatchInfo` then, which has the
        fields of windows. Not with `postprocess`.

    Returns:
      A `ReplayDataset`. Does not connect yet.

    Raises:
      InvalidArgumentError: If a number is out of its range, if no table has a positive weight, or
        if a spec is given.
    """
    del num_parallel_calls, transition_adder, convert_zero_size_to_none, using_deprecated_adder
    del sequence_length
    if environment_spec is not None or extra_spec is not None:
        raise errors.InvalidArgumentError(
            "make_reverb_dataset no longer takes environment_spec and extra_spec: use them for the "
            "signature of the table"
        )
    for argument, value, least in (
        ("prefetch_size", prefetch_size, 0),
        ("max_in_flight_samples_per_worker", max_in_flight_samples_per_worker, 1),
    ):
        if value is not None and value < least:
            raise errors.InvalidArgumentError(f"{argument} must be at least {least}, got {value}")
    client = server_address if isinstance(server_address, Client) else Client(server_address)
    options: dict[str, Any] = {
        "mix": "batch",
        "postprocess": postprocess,
        "end_after_ms": end_after_ms,
        "timeout_ms": timeout_ms,
        "container_types": container_types,
        "seed": seed,
    }
    if window is not None:
        options["window"] = window
    BatchIterator.check_arguments(table, batch_size, **options)
    size = prefetch_size or _num_ahead(batch_size, max_in_flight_samples_per_worker)
    is_batch = batch_size is not None and postprocess is None
    functions = (_as_in_acme,) if is_batch and window is None else ()
    return ReplayDataset((client, table, batch_size), options, size, functions)


class NumpyIterator:
    """Makes an iterator over a dataset; replaces `acme.datasets.NumpyIterator`.

    Example:
      >>> dataset = make_reverb_dataset(client.server_address, batch_size=2, table="table")
      >>> iterator = NumpyIterator(dataset)
      >>> len(next(iterator).info.key)
      2
    """

    def __new__(cls, dataset: Any) -> Any:
        """Returns `iter(dataset)`."""
        return iter(dataset)


def _as_in_acme(batch: ReplaySample) -> ReplaySample:
    """Converts a batch to one whose info has only the fields of Acme."""
    return ReplaySample(SampleInfo(*batch.info[:5]), batch.data)


def _num_ahead(batch_size: int | None, num_items: int | None) -> int:
    """Returns the number of elements to prefetch for about `num_items` items."""
    if num_items is None:
        return _DEFAULT_ITEMS_AHEAD if batch_size is None else _DEFAULT_BATCHES_AHEAD
    return max(1, num_items // (batch_size or 1))
