# SPDX-License-Identifier: Apache-2.0
"""The table of a buffer: on a running server, or on the buffer's own server."""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import reverb
from reverb.adapters.own_server import OwnServer
from reverb.adapters.torchrl.fields import columns_of
from reverb.adapters.torchrl.table_fields import TableFields, fields_table
from reverb.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)

__all__ = ["TableAccess", "alpha_of", "tables"]

# Interval at which a buffer that removes sampled items checks how many are left.
_CONSUMER_WAIT_MS = 50


def tables(
    name: str = "replay",
    *,
    max_size: int = 1_000_000,
    alpha: float | None = None,
    rate_limiter: reverb.rate_limiters.RateLimiter | None = None,
    consume_after_n_samples: int | None = None,
    max_bytes: int | str | None = None,
    seed: int | None = None,
) -> list[reverb.Table]:
    """Makes the tables of a `ReverbReplayBuffer`, for a separate server.

        server = reverb.Server(reverb.adapters.torchrl.tables("replay", alpha=0.6), port=8000)

    The second one, `name + ".fields"`, has the names of the fields, for programs that only sample.
    It is not needed if the signature of the table is a dict.

    Args:
      name: Name of the table with the data.
      max_size: Maximum number of items; the oldest ones are evicted.
      alpha: The exponent of priorities; `None`: the table samples uniformly.
      rate_limiter: Rate limiter of the table with the data; `None`: `MinSize(1)`.
      consume_after_n_samples: An item is removed after it was sampled this often; `None`: never.
      max_bytes: As in `reverb.Table`.
      seed: Makes the samples of the table reproducible.

    Raises:
      InvalidArgumentError: If a number is out of its range.
    """
    if consume_after_n_samples is not None and consume_after_n_samples < 1:
        raise InvalidArgumentError(
            f"consume_after_n_samples must be at least 1, got {consume_after_n_samples}"
        )
    sampler: Any = reverb.selectors.Uniform()
    if alpha is not None:
        sampler = reverb.selectors.Prioritized(alpha)
    data = reverb.Table(
        name,
        sampler=sampler,
        remover=reverb.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=rate_limiter or reverb.rate_limiters.MinSize(1),
        max_times_sampled=consume_after_n_samples or 0,
        max_bytes=max_bytes,
        max_priority="ever",
        seed=seed,
    )
    fields = reverb.Table(
        fields_table(name),
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    return [data, fields]


def alpha_of(info: Any) -> float | None:
    """The exponent of a table's sampler, or `None` if it does not sample by priority."""
    options = info.sampler_options
    is_prioritized = options.WhichOneof("distribution") == "prioritized"
    return options.prioritized.priority_exponent if is_prioritized else None


class TableAccess:
    """A client of the table, and the server if it is the buffer's own.

    Attributes:
      table: Name of the table.
      max_size: Maximum number of items of the table.
      alpha: The exponent of its sampler, or `None` if it does not sample by priority.
      max_times_sampled: Number of samples after which an item is removed; 0: no limit.
      own: The buffer's own server, or `None`.
      fields: The fields of the table, shared between its processes.
    """

    def __init__(self, server: Any, table: str, settings: dict[str, Any]) -> None:
        """Asks a running server, or starts one in this process with the `tables` of the settings.

        Raises:
          InvalidArgumentError: If there is no such table.
          UnavailableError: If no server answers.
        """
        self.table = table
        self._settings = settings
        self._is_closed = False
        self.own: OwnServer | None = None
        if server is None:
            self.own = OwnServer(lambda: tables(self.table, **self._settings))
            self._client = self.own.client
        else:
            self._client = reverb.Client(server) if isinstance(server, str) else server
        self.fields = TableFields(self)
        info = self.info()
        self.alpha = alpha_of(info)
        self.sampler_name = info.sampler_options.WhichOneof("distribution")
        self.max_size = info.max_size
        self.max_times_sampled = max(info.max_times_sampled, 0)

    @property
    def client(self) -> reverb.Client:
        """The client.

        Raises:
          FailedPreconditionError: If the buffer is closed, or a forked copy of one that has loaded
            other items.
        """
        if self._is_closed:
            raise FailedPreconditionError("the replay buffer is closed")
        if self.own is not None:
            self.own.check_not_replaced()
        return self._client

    @property
    def address(self) -> str:
        """The address of the table for other processes."""
        return self._client.server_address

    @contextlib.contextmanager
    def naming_table(self) -> Iterator[None]:
        """Adds the name of the table to errors about an unavailable server.

        Raises:
          UnavailableError: If the body raises one.
        """
        try:
            yield
        except UnavailableError as error:
            text = f"Table {self.table} is out of reach. "
            if str(error).startswith(text):
                raise
            enriched = UnavailableError(text + str(error))
            enriched.samples = error.samples
            raise enriched from error

    def for_others(self) -> Any:
        """Content of a pickle: the address, or the user's client."""
        return self._client if self.own is None else self.address

    def info(self) -> Any:
        """Returns the `TableInfo`; asks the server.

        Raises:
          InvalidArgumentError: If there is no such table.
        """
        with self.naming_table():
            infos = self.client.server_info()
        if self.table not in infos:
            raise InvalidArgumentError(
                f"server {self.address} has no table {self.table}; it has {sorted(infos)}"
            )
        return infos[self.table]

    def sizes(self) -> dict[str, int | float]:
        """Returns sizes by the names of TorchRL's `stats`; asks the server once."""
        info = self.info()
        return {
            "size": info.current_size,
            "write_count": int(info.rate_limiter_info.insert_stats.completed),
            "capacity": info.max_size,
            "utilization": info.current_size / info.max_size,
        }

    def set_alpha(self, alpha: float) -> None:
        """Changes the exponent of the table."""
        self.client.configure_table(self.table, priority_exponent=alpha)
        self.alpha = alpha
        self._settings["alpha"] = alpha

    # ---- Items -----------------------------------------------------------------------------------

    def sample(
        self, batch_size: int, timeout_ms: int | None, window: reverb.Window | None = None
    ) -> Any:
        """Samples a batch; waits for the rate limiter, but not for an empty table.

        While `fields.lack_time` is true, columns that are sequences are `reverb.Ragged`, except
        with a window.

        Raises:
          RuntimeError: If the table is empty. Also if no item has such a window, on the buffer's
            own server without `timeout_ms`: a program that samples there usually writes as well,
            and would wait for itself.
          DeadlineExceededError: After `timeout_ms`.
        """
        client = self.client
        with self.naming_table():
            options: dict[str, Any] = {}
            if window is not None:
                options["window"] = window
            elif self.fields.lack_time:
                options["ragged"] = "packed"
            if self.max_times_sampled:
                return self._sample_remaining(batch_size, timeout_ms, options)
            options["partial"] = False
            try:
                return client.sample_batch(self.table, batch_size, timeout_ms=0, **options)
            except DeadlineExceededError as error:
                refusal = error
        self._check_not_empty()
        if window is not None and self.own is not None and timeout_ms is None:
            raise RuntimeError(f"Cannot sample windows of {window.num_steps} steps. {refusal}")
        with self.naming_table():
            return client.sample_batch(self.table, batch_size, timeout_ms=timeout_ms, **options)

    def insert(self, rows: Any, priorities: Any) -> Any:
        """Inserts the rows of a TensorDict `[B, ...]` as items, and waits for the server.

        Returns:
          Keys of the items, uint64 `[B]`; `None` in a group of servers.

        Raises:
          SignatureMismatchError: If the fields are not those of the table.
        """
        fields, columns = columns_of(rows)
        columns = self.fields.in_order(fields, columns)
        self.expect_items(sum(it.nbytes for it in columns) / max(len(columns[0]), 1))
        with self.naming_table():
            keys = self.client.insert_batch(columns, {self.table: priorities})
        self.fields.confirm()
        return keys[self.table] if keys else None

    def expect_items(self, item_bytes: float) -> None:
        """Chooses the compression of the own table before its first item of `item_bytes`."""
        if self.own is not None:
            self.own.choose_compression(self.max_size * item_bytes)
            self._client = self.own.client

    def update_priorities(self, keys: Any, priorities: Any) -> None:
        """Updates priorities `[B]`; see `reverb.Client.update_priorities`."""
        with self.naming_table():
            self.client.update_priorities(self.table, keys, priorities)

    def scan(self) -> Iterator[list[np.ndarray[Any, Any]]]:
        """Reads the columns of all items, the oldest one first."""
        with self.naming_table():
            for sample in self.client.scan(self.table):
                yield [np.asarray(it) for it in sample.data]

    def _sample_remaining(
        self, batch_size: int, timeout_ms: int | None, options: dict[str, Any]
    ) -> Any:
        """Samples from a table that removes sampled items, so the last batch may be smaller."""
        deadline = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        wait_ms = 0
        while True:
            left = self._check_not_empty()
            try:
                # An item that is removed by its first sample cannot be in a batch twice.
                return self.client.sample_batch(
                    self.table,
                    min(batch_size, left),
                    timeout_ms=wait_ms,
                    distinct=self.max_times_sampled > 1,
                    **options,
                )
            except InvalidArgumentError:
                # Another program has taken some of them meanwhile.
                if self.info().current_size >= left:
                    raise
            except DeadlineExceededError as error:
                # Items were taken by others; or the limiter is closed, or a shard had no items.
                if error.samples or time.monotonic() > deadline:
                    raise
                wait_ms = _CONSUMER_WAIT_MS

    def _check_not_empty(self) -> int:
        size = self.info().current_size
        if size == 0:
            # TorchRL's text, because programs match it.
            raise RuntimeError(
                f"Cannot sample from an empty storage. Table {self.table} of server "
                f"{self.address} has no items."
            )
        return size

    def remove_all(self, *, keep_counters: bool) -> None:
        """Removes all items."""
        with self.naming_table():
            if not keep_counters:
                self.client.reset(self.table)
                return
            keys = [sample.info.key for sample in self.client.scan(self.table)]
            self.client.mutate_priorities(self.table, deletes=keys)

    # ---- Files -----------------------------------------------------------------------------------

    def replace_items(self, stored: reverb.checkpointers.Checkpoint) -> None:
        """Replaces the items, and the exponent, of the own table by those of a checkpoint."""
        assert self.own is not None
        before = self._settings["alpha"]
        self._settings["alpha"] = alpha_of(stored.tables[self.table])
        try:
            self.own.start_again(stored)
        except BaseException:
            self._settings["alpha"] = before
            raise
        self.alpha = self._settings["alpha"]
        self._client = self.own.client
        self.fields.remember(None)

    def close(self) -> None:
        """Stops the server, if it runs in this process."""
        is_first = not self._is_closed
        self._is_closed = True
        if is_first and self.own is not None:
            self.own.stop()
