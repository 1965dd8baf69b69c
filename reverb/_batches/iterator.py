# SPDX-License-Identifier: Apache-2.0
"""An iterator over batches that are fetched ahead."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reverb._batches.mixture import positive_weights
from reverb._batches.prefetching import Ahead, PrefetchIterator, Source
from reverb._batches.priority_updates import PriorityUpdates
from reverb._batches.source import OPTIONS
from reverb._checks.arguments import check_at_least, check_timeout_ms
from reverb._client.batch_request import BatchRequest
from reverb._client.epochs import check_epochs
from reverb.errors import InvalidArgumentError
from reverb.shown_text import type_name

__all__ = ["BatchIterator", "checked_arguments"]


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
        checked_arguments(table, batch_size, **arguments)

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

    def update_priorities(self, keys: object, priorities: object) -> None:
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


def checked_arguments(
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


# The public import path.
BatchIterator.__module__ = "reverb"
