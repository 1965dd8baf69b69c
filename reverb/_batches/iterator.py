# SPDX-License-Identifier: Apache-2.0
"""Batches of tables that a background thread fetches ahead."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from reverb._batches.mixture import by_batch, by_item, positive_weights
from reverb._batches.prefetching import Ahead, Pipe, PrefetchIterator, Source
from reverb._batches.priority_updates import PriorityUpdates
from reverb._batches.source import OPTIONS, TableSource
from reverb._batches.whole_batches import MAX_ITEMS
from reverb._checks.arguments import check_at_least, check_timeout_ms
from reverb._client.batch_request import BatchRequest
from reverb._client.epochs import check_epochs
from reverb.client import Client
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import ReplaySample
from reverb.shown_text import type_name

__all__ = ["BatchIterator", "batches"]


class BatchIterator(PrefetchIterator):
    """Made by `batches`: an iterator over batches that are fetched ahead.

    `next` returns a batch, and blocks until there is one. It raises the errors of the background
    thread, and of updates of priorities in the background. Close the iterator, or use it in a
    `with` block; queued batches then count as sampled. Not thread-safe, except for
    `update_priorities`.

    Example:
      >>> iterator = reverb.batches(client, "table", 2)
      >>> len(next(iterator).info.key)
      2
      >>> iterator.close()
    """

    def __init__(
        self,
        source: Source,
        size: int,
        *,
        timeout_ms: int | None,
        updates: PriorityUpdates,
        ahead: Ahead | None = None,
    ) -> None:
        self._updates = updates
        super().__init__(source, size, timeout_ms=timeout_ms, ahead=ahead)

    def __repr__(self) -> str:
        if "_pipe" not in self.__dict__:
            return "BatchIterator(not made)"
        stats = self.stats()
        return f"BatchIterator(queued={stats.queued}, num_returned={stats.num_returned})"

    @staticmethod
    def check_arguments(
        table: str | Mapping[str, float], batch_size: int | None, **arguments: Any
    ) -> None:
        """Checks arguments of `batches` without a client, for iterators that are made later.

        Raises:
          InvalidArgumentError: If one is out of its range.
          TypeError: If one is of another type, or if there is no such argument.
        """
        _checked(table, batch_size, **arguments)

    def __next__(self) -> Any:
        """Returns the next batch; blocks until there is one.

        Raises:
          StopIteration: After `end_after_ms`, after the last of `epochs`, or if the iterator was
            closed.
          DeadlineExceededError: After `timeout_ms`; the text says what it waited for. Nothing is
            lost: call again.
          ReverbError: If fetching or an update of priorities failed; the text names table and
            address.
        """
        self._updates.check()
        return super().__next__()

    def update_priorities(self, keys: Any, priorities: Any) -> None:
        """Updates priorities in the background, in the order of the calls.

        Blocks only while 16 updates are queued. The next `next`, `update_priorities` or `flush`
        raises their errors. Keys of items that have left the table are ignored.

        Args:
          keys: `[B]`, `batch.info.key`; int64 holds the same bits.
          priorities: `[B]` of any float or integer dtype, at least 0 and finite, or one number for
            all.

        Raises:
          InvalidArgumentError: If there is not one priority for each key.
          TypeError: If `keys` are not integers.
          FailedPreconditionError: If the iterator is closed.
          ReverbError: If an earlier update failed.
        """
        self._updates.put(keys, priorities)

    def flush(self) -> None:
        """Waits until the server has applied all updates of priorities.

        Raises:
          ReverbError: If one failed.
        """
        self._updates.flush()

    def close(self) -> None:
        """Stops prefetching, and waits for updates in transit.

        Queued batches are lost; they count as sampled.
        """
        super().close()
        self._updates.close()


def batches(
    client: Client | str,
    table: str | Mapping[str, float],
    batch_size: int | None,
    *,
    prefetch: int = 2,
    transform: Callable[[Any], Any] | None = None,
    convert: Callable[[Any], Any] | None = None,
    postprocess: Callable[[ReplaySample], Any] | None = None,
    partial: bool = False,
    mix: Literal["item", "batch"] = "item",
    seed: int | None = None,
    timeout_ms: int | None = None,
    end_after_ms: int | None = None,
    epochs: int | None = None,
    drop_last: bool = False,
    container_types: Sequence[type] = (),
    out: Callable[[], list[Any] | None] | None = None,
    **options: Any,
) -> BatchIterator:
    """Samples batches, without end or for some epochs, and fetches some batches ahead.

    Batches that are fetched ahead count as sampled: with `SampleToInsertRatio` the learner sees the
    newest data that much later, and a table with `max_times_sampled` is emptied that much earlier.
    At most `prefetch` batches are in flight or queued at any moment; `BatchIterator.stats` returns
    how many are ready, and how old the last one was. The core fetches them without a Python thread,
    unless there are several tables, a `transform`, `out`, `partial`, `end_after_ms` or
    `epochs`; or `columns` or `pad` with a server in another process.

    Example:
      >>> with reverb.batches(client, "table", 2) as iterator:
      ...     sample = next(iterator)
      ...     iterator.update_priorities(sample.info.key, [0.5, 2.0])
      >>> sample.data[0].shape
      (2, 1, 4)

    Args:
      client: A client, or the address of a server.
      table: Name of a table, or weights by name to mix several tables.
      batch_size: Number of items in a batch, `B`. `None`: elements are single items, each a
        `ReplaySample` without the first dimension.
      prefetch: Number of batches to fetch ahead, at least 1.
      transform: Called with every batch in the background thread; its results are returned.
      convert: Like `transform`, for a quick function: where the core fetches the batches, it is
        called in the thread of `next`, and needs no background thread.
      postprocess: Called in the background thread with every single item; its results are stacked.
        Items may differ in length if the results do not. Many times slower than `transform`.
      partial: Whether a batch may be shorter if the rate limiter allows no more samples for 0.2 s.
        `False`: the batch waits for the rest.
      mix: With several tables: "item": each batch has `weight * B` rows of each table, rounded down
        or up at random such that the average is exact; the rows of a table are side by side, in
        the order of `table`, and all tables need the same columns, with the same shapes and dtypes:
        `columns` and `squeeze` make them alike. "batch": each batch comes from one table, drawn by
        weight.
      seed: Makes the choice between tables reproducible.
      timeout_ms: How long `next` waits for a batch until it raises `DeadlineExceededError`, in
        milliseconds; `None`: no limit; 0: it does not wait. The iterator goes on afterwards.
      end_after_ms: The iterator ends if the rate limiter allows no sample for this long, in
        milliseconds; `None`: never. If some rows of a batch were sampled by then, they are the last
        batch with `partial`, and else `samples` of a `DeadlineExceededError`.
      epochs: The iterator ends after so many epochs of a table whose sampler is `Shuffle`; `None`:
        it has no end. The first one is new, even if another reader is within one. No batch spans
        two epochs, so that the last one of each may be shorter; no item comes twice in an epoch.
        Items that are inserted before the end of an epoch is reached join it, deleted ones leave
        it. For one reader of one table of one server. An epoch during which the server is started
        again begins anew.
      drop_last: Whether the last batch of an epoch is dropped if it is shorter; its items count as
        sampled.
      container_types: Named tuple classes for `data`, matched by name and fields with those of the
        table's signature. Named tuples without a match have the same class in every batch.
      out: Called for every batch in the background thread; returns the flat list of arrays
        `[B, ...]` to decode the batch into, or `None` for new memory. Ignored with several tables.
      **options: Other arguments of `Client.sample_batch`.

    Returns:
      An iterator; it begins to fetch at once. Each element is a `ReplayBatch`: `info` has arrays
      `[B]`, `data` is nested like the table's signature with arrays `[B, ...]` (a flat list if the
      table has no signature). With several tables in a batch, the info of a row is about its table.

    Raises:
      InvalidArgumentError: If an argument is out of its range. Errors of the server are raised by
        `next`.
    """
    batch_size, prefetch, weights = _checked(
        table,
        batch_size,
        prefetch=prefetch,
        transform=transform,
        convert=convert,
        postprocess=postprocess,
        partial=partial,
        mix=mix,
        seed=seed,
        timeout_ms=timeout_ms,
        end_after_ms=end_after_ms,
        epochs=epochs,
        drop_last=drop_last,
        container_types=container_types,
        out=out,
        **options,
    )
    if not isinstance(client, str | Client):
        raise TypeError(f"client must be a reverb.Client or an address, got {type_name(client)}")
    client = Client(client) if isinstance(client, str) else client._lasting()
    sources = [
        TableSource(
            client,
            name,
            batch_size,
            postprocess=postprocess,
            end_after_ms=end_after_ms,
            epochs=epochs,
            drop_last=drop_last,
            container_types=container_types,
            partial=partial,
            options=options,
            out=out if len(weights) == 1 else None,
        )
        for name in weights
    ]
    shares = list(weights.values())
    if len(sources) > 1 and mix == "item" and batch_size is not None:
        first = sources[0]
        parts = {name: it.rows for name, it in zip(weights, sources, strict=True)}
        source = by_item(parts, first.mixed, first.cut_off, shares, batch_size, seed)
    else:
        source = by_batch(sources, shares, seed)
    function = convert if transform is None else transform
    if function is not None:
        source = _transformed(source, function)
    updates = PriorityUpdates(client, list(weights))
    ahead = None
    needs_thread = transform is not None or postprocess is not None or out is not None
    if len(sources) == 1 and not needs_thread and (batch_size or 0) <= MAX_ITEMS:
        ahead = sources[0].ahead(prefetch, convert)
    return BatchIterator(source, prefetch, timeout_ms=timeout_ms, updates=updates, ahead=ahead)


def _checked(
    table: str | Mapping[str, float],
    batch_size: int | None,
    *,
    prefetch: int = 2,
    transform: Any = None,
    convert: Any = None,
    postprocess: Any = None,
    partial: bool = False,
    mix: str = "item",
    seed: int | None = None,
    timeout_ms: int | None = None,
    end_after_ms: int | None = None,
    epochs: int | None = None,
    drop_last: bool = False,
    container_types: Sequence[type] = (),
    out: Any = None,
    **options: Any,
) -> tuple[int | None, int, dict[str, float]]:
    """Checks arguments of `batches`; returns `batch_size`, `prefetch` and the weights of tables.

    Raises:
      InvalidArgumentError: If one is out of its range.
      TypeError: If one is of another type, or if there is no such argument.
    """
    unknown = sorted(options.keys() - OPTIONS.keys())
    if unknown:
        raise TypeError(f"batches() got an unexpected keyword argument {unknown[0]!r}")
    if batch_size is not None:
        batch_size = check_at_least(1, "batch_size", batch_size)
    prefetch = check_at_least(1, "prefetch", prefetch)
    functions = {"transform": transform, "convert": convert, "postprocess": postprocess, "out": out}
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, got {type_name(function)}")
    check_timeout_ms(timeout_ms)
    if end_after_ms is not None:
        check_at_least(0, "end_after_ms", end_after_ms)
    if mix not in ("item", "batch"):
        raise InvalidArgumentError(f"mix must be 'item' or 'batch', got {mix!r}")
    if isinstance(seed, bool):
        raise TypeError("seed must be an integer, got bool")
    if seed is not None:
        np.random.default_rng(seed)
    if not isinstance(container_types, Iterable):
        raise TypeError(f"container_types must be classes, got {type_name(container_types)}")
    for kind in container_types:
        if not isinstance(kind, type):
            raise TypeError(f"container_types must be classes, got {kind!r}")
    if transform is not None and convert is not None:
        raise InvalidArgumentError("give only one of transform and convert, got both")
    weights = positive_weights(table)
    if check_epochs(epochs, drop_last, partial) is not None and len(weights) > 1:
        raise InvalidArgumentError(
            f"epochs is for one table, got {list(weights)}: each table has epochs of its own"
        )
    if batch_size is None or postprocess is not None:
        whole = {**options, "out": out, "partial": partial or None, "epochs": epochs}
        given = [name for name, value in whole.items() if value is not None]
        if given:
            raise InvalidArgumentError(
                f"{given[0]} is for batches that the client makes: leave it out with postprocess, "
                "and with batch_size=None"
            )
        if batch_size is not None and len(weights) > 1 and mix == "item":
            raise InvalidArgumentError("postprocess needs mix='batch' with several tables")
    BatchRequest("", batch_size or 1, **OPTIONS | options, out=None, partial=True, timeout_ms=None)
    return batch_size, prefetch, weights


def _transformed(source: Source, function: Callable[[Any], Any]) -> Source:
    """Makes a source of `function(element)`, called in the background thread."""

    def results(count: int, pipe: Pipe) -> Any:
        return map(function, source(count, pipe))

    return results


# The public import path.
BatchIterator.__module__ = "reverb"
