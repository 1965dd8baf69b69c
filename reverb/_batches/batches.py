# SPDX-License-Identifier: Apache-2.0
"""The function that makes an iterator over batches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from reverb._batches.iterator import BatchIterator
from reverb._batches.mixture import by_batch, by_item
from reverb._batches.options import BatchOptions
from reverb._batches.prefetching import Pipe, Source
from reverb._batches.priority_updates import PriorityUpdates
from reverb._batches.source import TableSource
from reverb._batches.whole_batches import MAX_ITEMS
from reverb.client import Client
from reverb.replay_sample import ReplaySample
from reverb.shown_text import type_name

__all__ = ["batches"]


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
    **options: object,
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
        milliseconds; `None`: no limit; 0: it does not wait. The iterator can be used afterwards.
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
    arguments = BatchOptions.of(
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
    return _iterator(client, arguments)


def _iterator(client: Client, options: BatchOptions) -> BatchIterator:
    weights = options.weights
    batch_size = options.batch_size
    sources = [TableSource(client, table, options) for table in weights]
    shares = list(weights.values())
    if len(sources) > 1 and options.mix == "item" and batch_size is not None:
        first = sources[0]
        parts = {name: it.rows for name, it in zip(weights, sources, strict=True)}
        source = by_item(parts, first.mixed, first.cut_off, shares, batch_size, options.seed)
    else:
        source = by_batch(sources, shares, options.seed)
    function = options.convert if options.transform is None else options.transform
    if function is not None:
        source = _transformed(source, function)
    ahead = None
    functions = (options.transform, options.postprocess, options.out)
    needs_thread = any(function is not None for function in functions)
    if len(sources) == 1 and not needs_thread and (batch_size or 0) <= MAX_ITEMS:
        ahead = sources[0].ahead(options.prefetch, options.convert)
    updates = PriorityUpdates(client, list(weights))
    return BatchIterator(source, options.prefetch, options.timeout_ms, updates, ahead)


def _transformed(source: Source, function: Callable[[Any], Any]) -> Source:
    """Makes a source of `function(element)`, called in the background thread."""

    def results(count: int, pipe: Pipe) -> Iterator[object]:
        return map(function, source(count, pipe))

    return results
