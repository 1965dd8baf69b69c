# SPDX-License-Identifier: Apache-2.0
"""The table of a buffer: on a server that is there, or on one of the buffer's own."""

import contextlib
import math
import os
import pathlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

import reverb
from reverb._checkpoints.packed import pack_checkpoint, unpack_checkpoint
from reverb.adapters.torchrl.fields import Fields
from reverb.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)

__all__ = ["TableAccess", "tables"]

# How long one that removes what it samples waits before it looks again what is left.
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
    """Makes the tables that a `ReverbReplayBuffer` works with, for a server of their own.

        server = reverb.Server(reverb.adapters.torchrl.tables("replay", alpha=0.6), port=8000)

    The second one, `name + ".fields"`, has the names of the fields for those who only sample. A
    buffer takes a table without it if its signature is a dict.

    Args:
      name: Of the table with the data.
      max_size: Maximum number of items; the oldest ones are evicted.
      alpha: The exponent of priorities; `None`: the table samples uniformly.
      rate_limiter: Of the table with the data; `None`: `MinSize(1)`.
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
        _fields_table(name),
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    return [data, fields]


def _fields_table(name: str) -> str:
    return f"{name}.fields"


class TableAccess:
    """A client of the table, and the server if it is the buffer's own.

    Attributes:
      table: Name of the table.
      max_size: Of the table.
      alpha: The exponent of its sampler, or `None` if it does not sample by priority.
      max_times_sampled: Of the table; 0: no limit.
    """

    def __init__(self, server: Any, table: str, settings: dict[str, Any]) -> None:
        """Starts a server, or asks the one that is there.

        Args:
          server: Address or client; `None`: a server in this process.
          table: Name of the table.
          settings: Arguments of `tables`, for a server in this process.

        Raises:
          InvalidArgumentError: If there is no such table.
          UnavailableError: If no server answers.
        """
        self.table = table
        self._settings = settings
        self._server: reverb.Server | None = None
        self._directory: str | None = None
        self._remove: Any = None
        self._owner = os.getpid()
        self._is_closed = False
        self._fields: Fields | None = None
        if server is None:
            self._directory = tempfile.mkdtemp(prefix="reverb-torchrl-")
            self._remove = weakref.finalize(self, shutil.rmtree, self._directory, True)
            self._serve(None)
        else:
            self._client = reverb.Client(server) if isinstance(server, str) else server
        info = self.info()
        options = info.sampler_options
        is_prioritized = options.WhichOneof("distribution") == "prioritized"
        self.alpha = options.prioritized.priority_exponent if is_prioritized else None
        self.sampler_name = options.WhichOneof("distribution")
        self.max_size = info.max_size
        self.max_times_sampled = max(info.max_times_sampled, 0)

    @property
    def client(self) -> reverb.Client:
        """The client.

        Raises:
          FailedPreconditionError: If the buffer is closed.
        """
        if self._is_closed:
            raise FailedPreconditionError("the replay buffer is closed")
        return self._client

    @property
    def is_own(self) -> bool:
        """Whether the server is the buffer's."""
        return self._server is not None

    @property
    def address(self) -> str:
        """Where other processes find the table."""
        return self._client.server_address

    @contextlib.contextmanager
    def telling_table(self) -> Iterator[None]:
        """Makes an error for want of a server name the table, too.

        Raises:
          UnavailableError: If the body does.
        """
        try:
            yield
        except UnavailableError as error:
            text = f"Table {self.table} is out of reach. "
            if str(error).startswith(text):
                raise
            told = UnavailableError(text + str(error))
            told.samples = error.samples
            raise told from error

    def for_others(self) -> Any:
        """What a pickle has: the address, or the client of the user."""
        return self.address if self.is_own else self._client

    def info(self) -> Any:
        """Returns the `TableInfo`; asks the server.

        Raises:
          InvalidArgumentError: If there is no such table.
        """
        with self.telling_table():
            infos = self.client.server_info()
        if self.table not in infos:
            raise InvalidArgumentError(
                f"server {self.address} has no table {self.table}; it has {sorted(infos)}"
            )
        return infos[self.table]

    def set_alpha(self, alpha: float) -> None:
        """Changes the exponent of the table."""
        self.client.configure_table(self.table, priority_exponent=alpha)
        self.alpha = alpha
        self._settings["alpha"] = alpha

    # ---- Fields ----------------------------------------------------------------------------------

    def known_fields(self) -> Fields | None:
        """The fields, as far as this process has learned them."""
        return self._fields

    def check_fields(self, fields: Fields) -> None:
        """Compares fields with those of the items, or makes them known to everybody.

        Raises:
          InvalidArgumentError: If the items have other fields.
        """
        known = self._fields or self._stored_fields()
        if known is None:
            with self.telling_table():
                if _fields_table(self.table) in self.client.server_info():
                    text = np.array(fields.to_json().encode())
                    self.client.insert([text], {_fields_table(self.table): 1.0})
            known = fields
        if known.batch_dims != fields.batch_dims:
            # Of a signature, which does not tell it.
            known.batch_dims = fields.batch_dims
        known.check(fields, self.table)
        self._fields = known

    def fields(self) -> Fields:
        """Returns the fields of the items.

        Raises:
          InvalidArgumentError: If nobody has told them.
        """
        if self._fields is None:
            self._fields = self._stored_fields()
        if self._fields is None:
            raise InvalidArgumentError(
                f"the names of the fields of table {self.table} are not known: it has no "
                f"signature, and server {self.address} has no table {_fields_table(self.table)}. "
                "Make both with reverb.adapters.torchrl.tables, or give the table a dict as its "
                "signature"
            )
        return self._fields

    def remember(self, fields: Fields | None) -> None:
        """Takes over what another process has learned."""
        self._fields = fields

    def _stored_fields(self) -> Fields | None:
        with self.telling_table():
            infos = self.client.server_info()
            if _fields_table(self.table) in infos:
                for sample in self.client.scan(_fields_table(self.table)):
                    text = np.asarray(sample.data[0]).reshape(-1)[0]
                    return Fields.of_json(text.decode() if isinstance(text, bytes) else str(text))
                return None
        signature = infos[self.table].signature
        return None if signature is None else Fields.of_signature(signature)

    # ---- Items -----------------------------------------------------------------------------------

    def sample(self, batch_size: int, timeout_ms: int | None) -> Any:
        """Samples a batch; waits for the rate limiter, but not for an empty table.

        Raises:
          RuntimeError: If the table is empty.
          DeadlineExceededError: After `timeout_ms`.
        """
        client = self.client
        with self.telling_table():
            if self.max_times_sampled:
                return self._sample_what_is_left(batch_size, timeout_ms)
            try:
                return client.sample_batch(self.table, batch_size, partial=False, timeout_ms=0)
            except DeadlineExceededError:
                pass
        self._check_not_empty()
        with self.telling_table():
            return client.sample_batch(self.table, batch_size, partial=False, timeout_ms=timeout_ms)

    def insert(self, columns: list[Any], priorities: Any) -> Any:
        """Inserts items `[B, ...]`, and waits for the server.

        Returns:
          Their keys, uint64 `[B]`; `None` in a group of servers.
        """
        with self.telling_table():
            keys = self.client.insert_batch(columns, {self.table: priorities})
        return keys[self.table] if keys else None

    def update_priorities(self, keys: Any, priorities: Any) -> None:
        """Updates priorities `[B]`; see `reverb.Client.update_priorities`."""
        with self.telling_table():
            self.client.update_priorities(self.table, keys, priorities)

    def scan(self) -> Iterator[list[np.ndarray[Any, Any]]]:
        """Reads the columns of all items, the oldest one first."""
        with self.telling_table():
            for sample in self.client.scan(self.table):
                yield [np.asarray(it) for it in sample.data]

    def _sample_what_is_left(self, batch_size: int, timeout_ms: int | None) -> Any:
        """Samples items that leave, so the last batch may be smaller."""
        deadline = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        wait_ms = 0
        while True:
            left = self._check_not_empty()
            try:
                # An item that leaves with its first sample cannot be there twice.
                return self.client.sample_batch(
                    self.table,
                    min(batch_size, left),
                    timeout_ms=wait_ms,
                    distinct=self.max_times_sampled > 1,
                )
            except InvalidArgumentError:
                # Somebody else has taken some of them meanwhile.
                if self.info().current_size >= left:
                    raise
            except DeadlineExceededError as error:
                # As above; or the limiter is closed, or of a group a shard was asked that had none.
                if error.samples or time.monotonic() > deadline:
                    raise
                wait_ms = _CONSUMER_WAIT_MS

    def _check_not_empty(self) -> int:
        size = self.info().current_size
        if size == 0:
            # TorchRL's words, which programs look for.
            raise RuntimeError(
                f"Cannot sample from an empty storage. Table {self.table} of server "
                f"{self.address} has no items."
            )
        return size

    def remove_all(self, *, keep_counters: bool) -> None:
        """Removes all items."""
        with self.telling_table():
            if not keep_counters:
                self.client.reset(self.table)
                return
            keys = [sample.info.key for sample in self.client.scan(self.table)]
            self.client.mutate_priorities(self.table, deletes=keys)

    # ---- Files -----------------------------------------------------------------------------------

    def packed(self) -> bytes:
        """Makes a checkpoint and returns its files."""
        path = self.client.checkpoint()
        packed = pack_checkpoint(path)
        shutil.rmtree(path, ignore_errors=True)
        return packed

    def unpack(self, checkpoint: bytes | pathlib.Path) -> None:
        """Starts the own server again at the same address, with the items of a checkpoint."""
        assert self._server is not None
        assert self._directory is not None
        for path in pathlib.Path(self._directory).iterdir():
            shutil.rmtree(path, ignore_errors=True)
        unpack_checkpoint(checkpoint, self._directory)
        port = self._server.port
        self._server.stop()
        self._serve(port)
        self._fields = None

    def close(self) -> None:
        """Stops the server, if it is this process's own."""
        is_first = not self._is_closed
        self._is_closed = True
        if is_first and self._server is not None and self._owner == os.getpid():
            self._server.stop()
            self._remove()

    def _serve(self, port: int | None) -> None:
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(self._directory))
        made = tables(self.table, **self._settings)
        self._server = reverb.Server(made, port=port, checkpointer=checkpointer)
        self._client = self._server.localhost_client()
