# SPDX-License-Identifier: Apache-2.0
"""Asking a server: insert, sample, update, inspect."""

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from reverb.arguments import as_rows, check_at_least_one
from reverb.core import native
from reverb.errors import InvalidArgumentError, SignatureMismatchError, TableNotFoundError
from reverb.replay_sample import ReplaySample, SampleInfo, keep_samples, rows_of_batch
from reverb.reverb_types import CheckpointStatus, TableInfo
from reverb.sequence_writer import SequenceWriter, make_sequence_writer
from reverb.structured_writer import Config, StructuredWriter
from reverb.trajectory_writer import BatchedTrajectoryWriter, TrajectoryWriter
from reverb.writer import Writer

__all__ = ["Client", "Writer"]

# A server that is not there yet is waited for, because programs start in any order; not for ever,
# because a mistyped address would otherwise look like a program that hangs.
DEFAULT_CONNECT_TIMEOUT_S = 60.0

# A peer that vanished is noticed in at most their sum, and one that is frozen is given the second.
DEFAULT_KEEPALIVE_S = 10.0
DEFAULT_KEEPALIVE_TIMEOUT_S = 5.0

# Arguments of the native client, for whoever takes no options.
DEFAULT_OPTIONS = {
    "connect_timeout_s": DEFAULT_CONNECT_TIMEOUT_S,
    "keepalive_s": DEFAULT_KEEPALIVE_S,
    "keepalive_timeout_s": DEFAULT_KEEPALIVE_TIMEOUT_S,
}

# The older writer's default chunk length, where sequences are at least as long.
_DEFAULT_CHUNK_LENGTH = 10

# What the older writer understands as "no limit" of unconfirmed items.
_UNLIMITED_IN_FLIGHT_ITEMS = 1_000_000


class Client:
    """A connection to one server, or to several behind one address.

    Connects on first use. May be shared by threads; pickles as its address and options, so that it
    can be sent to other processes.

    Example:
      >>> server = reverb.Server([reverb.Table.queue("queue", max_size=10)])
      >>> client = reverb.Client(f"localhost:{server.port}")
      >>> client.insert([np.zeros(2), 1.0], priorities={"queue": 1.0})
      >>> for steps in client.sample("queue", num_samples=1):
      ...     print(steps[0].data)
      [array([0., 0.]), array(1.)]
    """

    def __init__(
        self,
        server_address: str,
        *,
        connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
        keepalive_s: float | None = DEFAULT_KEEPALIVE_S,
        keepalive_timeout_s: float = DEFAULT_KEEPALIVE_TIMEOUT_S,
    ) -> None:
        """Makes a client; does not connect yet.

        Args:
          server_address: `host:port`, several of them separated by commas, or a target in the
            notation of gRPC (`dns:///name:port`, `ipv4:127.0.0.1:1,127.0.0.1:2`). A name with
            several addresses is several servers too. With several servers, every call and every
            stream goes to the next one in turn; names are looked up again when one of them cannot
            be reached.
          connect_timeout_s: How long to wait for a first answer of the server, in seconds.
          keepalive_s: Time between two pings to the server while a call is open, in seconds, from
            0.1 to 86400; `None`: no pings. A server of dm-reverb gets none in any case: there, TCP
            notices after about half a minute that the machine has vanished.
          keepalive_timeout_s: A server that sends nothing for this long after a ping is taken for
            lost: its calls are tried again, as after any lost connection. In seconds, from 0.1 to
            86400; a server may be frozen for as long.

        Raises:
          InvalidArgumentError: If the address cannot be understood, or if a time is out of its
            range.
        """
        self._server_address = server_address
        self._options = {
            "connect_timeout_s": connect_timeout_s,
            "keepalive_s": keepalive_s,
            "keepalive_timeout_s": keepalive_timeout_s,
        }
        self._client = native.Client(
            server_address, connect_timeout_s, keepalive_s, keepalive_timeout_s
        )
        self._signature_cache: dict[str, Any] = {}

    @property
    def server_address(self) -> str:
        """The address as it was given."""
        return self._server_address

    def insert(self, data: Any, priorities: Mapping[str, float]) -> None:
        """Inserts one step as an item of its own into one or more tables.

        Blocks until the items are confirmed; the tables' rate limiters may delay that.

        Args:
          data: Nest of arrays. A leaf of shape `[...]` is sampled as a column `[1, ...]`.
          priorities: The tables to insert into, and the item's priority in each.

        Raises:
          InvalidArgumentError: If `priorities` is empty or holds a number that the table refuses.
          SignatureMismatchError: If the data differs from a table's signature.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
        """
        if not priorities:
            raise InvalidArgumentError("priorities must name at least one table, got none")
        self._client.insert(tree.flatten(data), dict(priorities))

    def insert_batch(self, data: Any, priorities: Mapping[str, Any]) -> None:
        """Inserts `B` steps, each as an item of its own, into one or more tables.

        The same as `B` calls of `insert`, in one, but that all rows count as one episode. Blocks
        until all items are confirmed.

        Args:
          data: Nest of arrays `[B, ...]`; row `i` is the data of item `i`.
          priorities: The tables to insert into, and the priorities `[B]` in each, or one number for
            all.

        Raises:
          InvalidArgumentError: If leaves or priorities disagree about `B`; otherwise as `insert`.
        """
        if not priorities:
            raise InvalidArgumentError("priorities must name at least one table, got none")
        leaves = [np.asarray(leaf) for leaf in tree.flatten(data)]
        if not leaves:
            raise InvalidArgumentError("data must have at least one leaf, got none")
        sizes = {len(leaf) if leaf.ndim else None for leaf in leaves}
        batch_size = sizes.pop()
        if sizes or batch_size is None:
            raise InvalidArgumentError(
                "leaves of a batch must all have shape [B, ...], got "
                f"{[list(leaf.shape) for leaf in leaves]}"
            )
        self._client.insert_batch(
            leaves,
            {
                table: as_rows("priorities", value, np.float64, batch_size)
                for table, value in priorities.items()
            },
        )

    def writer(
        self,
        max_sequence_length: int,
        delta_encoded: bool = False,
        chunk_length: int | None = None,
        max_in_flight_items: int | None = 25,
    ) -> Writer:
        """Makes a writer whose items are the last few steps.

        Blocks until the server has told its tables' signatures once.

        Args:
          max_sequence_length: Length of the longest item, in steps.
          delta_encoded: Stores integers as differences of neighbours, which compresses better where
            steps resemble each other.
          chunk_length: Number of steps stored together; `min(10, max_sequence_length)` if `None`.
          max_in_flight_items: Further items wait while as many are unconfirmed; `None`: no limit.

        Raises:
          InvalidArgumentError: If a number is out of its range.
          UnavailableError: If no server answers.
        """
        max_sequence_length = check_at_least_one("max_sequence_length", max_sequence_length)
        if chunk_length is None:
            chunk_length = min(_DEFAULT_CHUNK_LENGTH, max_sequence_length)
        if not 1 <= operator.index(chunk_length) <= max_sequence_length:
            raise InvalidArgumentError(
                f"chunk_length must be from 1 to max_sequence_length = {max_sequence_length}, got "
                f"{chunk_length}"
            )
        if max_in_flight_items is None:
            max_in_flight_items = _UNLIMITED_IN_FLIGHT_ITEMS
        max_in_flight_items = check_at_least_one("max_in_flight_items", max_in_flight_items)
        return Writer(
            self._client.writer(
                max_sequence_length, chunk_length, bool(delta_encoded), max_in_flight_items
            )
        )

    def trajectory_writer(
        self,
        num_keep_alive_refs: int,
        *,
        validate_items: bool = True,
        get_signature_timeout_ms: int | None = None,
    ) -> TrajectoryWriter:
        """Makes a writer whose items are any slices of its history.

        Blocks until the server has told its tables' signatures once; not at all if
        `validate_items` is False.

        Args:
          num_keep_alive_refs: How many values of each column stay within reach of new items.
          validate_items: Compares items with their table's signature, on this side.
          get_signature_timeout_ms: Accepted for programs written for early versions of the
            original, and ignored: `connect_timeout_s` of the client bounds the wait.

        Raises:
          InvalidArgumentError: If `num_keep_alive_refs` is below 1.
          UnavailableError: If no server answers.
        """
        del get_signature_timeout_ms
        refs = check_at_least_one("num_keep_alive_refs", num_keep_alive_refs)
        return TrajectoryWriter(self._client.trajectory_writer(refs, bool(validate_items), None))

    def batched_trajectory_writer(
        self, batch_size: int, num_keep_alive_refs: int, *, validate_items: bool = True
    ) -> BatchedTrajectoryWriter:
        """Makes one writer for `batch_size` environments that are stepped together.

        Args:
          batch_size: Number of environments, `B`.
          num_keep_alive_refs: How many values of each column and environment stay within reach.
          validate_items: As in `trajectory_writer`.

        Raises:
          InvalidArgumentError: If a number is below 1.
          UnavailableError: If no server answers.
        """
        batch_size = check_at_least_one("batch_size", batch_size)
        refs = check_at_least_one("num_keep_alive_refs", num_keep_alive_refs)
        writer = self._client.trajectory_writer(refs, bool(validate_items), batch_size)
        return BatchedTrajectoryWriter(writer, batch_size)

    def sequence_writer(
        self,
        tables: str | Sequence[str],
        sequence_length: int | None,
        batch_size: int | None = None,
        *,
        stride_length: int = 1,
        max_sequence_length: int | None = None,
        drop_long_episodes: bool = False,
    ) -> SequenceWriter:
        """Makes a writer that writes every sequence of steps, or every episode, by itself.

        Blocks until the server has told its tables' signatures once.

        Args:
          tables: Names of the tables; each of them gets every item.
          sequence_length: Number of steps of an item, `L`; `None`: an item is a whole episode.
          batch_size: Number of environments that are stepped together, `B`; `None`: one, whose
            steps have no batch dimension.
          stride_length: Number of steps from one item to the next: an episode makes items at its
            steps `L`, `L + stride_length`, `L + 2 * stride_length`, ...
          max_sequence_length: Steps of the longest episode that is written, where items are
            episodes; needed there, and nowhere else.
          drop_long_episodes: Leaves longer episodes out and counts them, instead of an error.

        Raises:
          InvalidArgumentError: If an argument is out of its range, or goes with another value of
            `sequence_length`.
          TableNotFoundError: If the server has no table of one of the names.
          UnavailableError: If no server answers.
        """
        return make_sequence_writer(
            self._client,
            tables,
            sequence_length,
            batch_size,
            stride_length,
            max_sequence_length,
            drop_long_episodes,
        )

    def structured_writer(self, configs: Sequence[Config]) -> StructuredWriter:
        """Makes a writer that creates items by itself, wherever a pattern fits.

        Does not contact the server.

        Args:
          configs: Patterns and conditions; see `reverb.structured.create_config`.

        Raises:
          InvalidArgumentError: If there is no config, or if one makes no sense (the text says which
            and why).
        """
        if not configs:
            raise InvalidArgumentError("At least one config must be provided.")
        return StructuredWriter(
            self._client.structured_writer([config.SerializeToString() for config in configs])
        )

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
    ) -> Iterator[Any]:
        """Samples items, one at a time.

        A generator: nothing happens before the first `next`. Samples are fetched ahead in the
        background. Blocks while the table's rate limiter allows no sample. For training loops,
        `sample_batch` is many times faster.

        Args:
          table: Name of the table.
          num_samples: Number of items.
          emit_timesteps: Yields lists of steps; the item's columns must have the same length then.
          unpack_as_table_signature: Nests the data like the table's signature; otherwise, or if the
            table has none, it is a flat list.
          timeout_ms: How long the rate limiter may delay a sample, in milliseconds; 0: not at all;
            `None`: as long as it takes.

        Yields:
          `list[ReplaySample]`, one for each of the `T` steps, with leaves `[...]`; or, if
          `emit_timesteps` is False, one `ReplaySample` with leaves `[T, ...]`.

        Raises:
          InvalidArgumentError: If `num_samples` is 0 or less, or if columns differ in length. In
            that case `error.samples` has the item, which counts as sampled.
          TableNotFoundError: If there is no such table.
          DeadlineExceededError: After `timeout_ms`.
          UnavailableError: If no server answers.
        """
        num_samples = operator.index(num_samples)
        if num_samples == -1:  # "Without limit" inside the original, whose loop then ends at once.
            return
        num_samples = check_at_least_one("num_samples", num_samples)
        yield from self._client.sampler(
            table,
            num_samples,
            bool(emit_timesteps),
            timeout_ms,
            SampleInfo,
            ReplaySample,
            # Asked for anew, because a server that was restarted may have another signature.
            self._unflatten(table, refresh=True) if unpack_as_table_signature else None,
        )

    def sample_batch(
        self,
        table: str,
        batch_size: int,
        *,
        unpack_as_table_signature: bool = False,
        timeout_ms: int | None = None,
    ) -> ReplaySample:
        """Samples `B` items at once, stacked.

        Blocks while the table's rate limiter allows fewer samples.

        An item is sampled when the server picks it: that is when it counts, and when a table with
        `max_times_sampled` removes it. Such a table checks the items that its rate limiter allows
        in one go before it counts any of them: if they cannot be stacked, nothing is sampled and
        they stay in the table. What was sampled and is not returned is in the `samples` of the
        exception, whichever it is (Ctrl-C included): items of an earlier go, and all of them if
        the server is one of dm-reverb. Items that were on their way when a server or a connection
        died are sampled, and nobody gets them.

        Args:
          table: Name of the table.
          batch_size: Number of items, `B`.
          unpack_as_table_signature: As in `sample`.
          timeout_ms: As in `sample`; 0: not at all.

        Returns:
          A `ReplaySample`: `info` has arrays `[B]` (key uint64, probability float64, table_size
          int64, priority float64, times_sampled int32), `data` has columns `[B, T, ...]`, or
          `[B, ...]` where the items' column is a single step.

        Raises:
          InvalidArgumentError: If `batch_size` is below 1, or if the items' dtypes or shapes
            differ. `error.samples` is a list of `ReplaySample`, one for each item that was sampled,
            with a flat list of columns `[T, ...]` as data; it is empty if none was.
          TableNotFoundError: If there is no such table.
          DeadlineExceededError: After `timeout_ms`, if no item was sampled. If some were, those are
            the batch.
          UnavailableError: If no server answers.
        """
        batch_size = check_at_least_one("batch_size", batch_size)
        try:
            info, columns = self._client.sample_batch(table, batch_size, timeout_ms)
        except BaseException as error:
            flat = error.__dict__.pop("samples", ())
            keep_samples(error, [ReplaySample(SampleInfo(*info), data) for info, data in flat])
            raise
        batch = ReplaySample(SampleInfo(*info), columns)
        if not unpack_as_table_signature:
            return batch
        try:
            return ReplaySample(batch.info, self._nested(table, columns))
        except BaseException as error:
            keep_samples(error, rows_of_batch(batch))
            raise

    def scan(
        self,
        table: str,
        *,
        unpack_as_table_signature: bool = False,
        with_inserted_at: bool = False,
    ) -> Iterator[Any]:
        """Reads every item of a table once, oldest first, without sampling.

        Nothing is counted: neither the items nor the rate limiter notice, and a limiter that lets
        nobody sample or insert does not delay a scan. For exports, checks and deterministic passes.

        A generator: the scan begins with the first `next`. It covers the items that are in the
        table at that moment and stay there until they are reached: later ones are not given, and
        removed ones are left out unless they had been read ahead (some 20 MiB at most). Each item
        comes as it is when it is read, so priorities may be of different moments. Writers are not
        held up. The order is that of insertion, which a new priority does not change.

        Blocks while the server has not answered. Closing or dropping the generator ends the scan on
        the server too. With several servers behind the address, one of them is scanned.

        Args:
          table: Name of the table.
          unpack_as_table_signature: As in `sample`.
          with_inserted_at: Yields pairs of the time of insertion, a float in seconds since 1970,
            and the sample.

        Yields:
          A `ReplaySample` with leaves `[T, ...]`, or `[...]` where a column of the item is a single
          step; the same data as from `sample(..., emit_timesteps=False)`. In its `info`,
          `times_sampled` is the count so far, `table_size` and `priority` are of the moment of
          reading, and `probability` is 0.0, because nothing was drawn.

        Raises:
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers, or if it stops in the middle.
          UnimplementedError: If the server is one of dm-reverb, which cannot do this.
        """
        yield from self._client.scanner(
            table,
            with_inserted_at,
            SampleInfo,
            ReplaySample,
            self._unflatten(table, refresh=True) if unpack_as_table_signature else None,
        )

    def mutate_priorities(
        self,
        table: str,
        updates: Mapping[int, float] | None = None,
        deletes: Sequence[int] | None = None,
    ) -> None:
        """Deletes items, then changes priorities of others.

        Keys that the table does not hold (any more) are ignored. With several servers behind the
        address, one of them is told, and it may be another one than the item's.

        Args:
          table: Name of the table.
          updates: New priorities by key.
          deletes: Keys of items to delete.

        Raises:
          InvalidArgumentError: If the table refuses a priority.
          TableNotFoundError: If there is no such table.
          TypeError: If a key is no uint64, or a priority no number.
          UnavailableError: If no server answers.
        """
        self._client.mutate_priorities(table, updates, deletes)

    def reset(self, table: str) -> None:
        """Removes all items of a table and sets its counters to zero.

        With several servers behind the address, this reaches the table of one of them, and the
        first time a warning in the log names it: make a client for each address to reach all.

        Raises:
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
        """
        self._client.reset(table)

    def server_info(self, timeout: int | None = None) -> dict[str, TableInfo]:
        """Tells about all tables of the server; of one, with several behind the address.

        Args:
          timeout: How long to wait for the answer, in whole seconds; `None`, 0 or less: until
            the client's `connect_timeout_s`.

        Returns:
          `TableInfo` by table name.

        Raises:
          DeadlineExceededError: After `timeout`.
          TypeError: If `timeout` is no integer.
          UnavailableError: If no server answers.
        """
        timeout_s = None if timeout is None else operator.index(timeout)
        tables = [
            TableInfo.from_serialized_proto(proto)
            for proto in self._client.server_info(
                float(timeout_s) if timeout_s is not None and timeout_s > 0 else None
            )
        ]
        self._signature_cache = {table.name: table.signature for table in tables}
        return {table.name: table for table in tables}

    def checkpoint(self) -> str:
        """Makes the server save its tables; returns the path of the checkpoint on the server.

        All tables are saved as of one moment after the call. Blocks until all of it is on disk;
        inserts and samples go on meanwhile. Ctrl-C ends the wait and not the save. Fails at once if
        no server answers. With several servers behind the address, one of them saves, as in
        `reset`.

        Raises:
          InvalidArgumentError: If the server's checkpointer has a group.
          FailedPreconditionError: If the server may not write to its directory.
          ResourceExhaustedError: If the disk is full.
          UnavailableError: If no server answers, or if it stops.
        """
        return self._client.checkpoint()

    def checkpoint_status(self) -> CheckpointStatus:
        """What became of the server's checkpoints, and how far the present one is.

        With several servers behind the address, one of them answers, as in `reset`.

        Raises:
          UnimplementedError: If the server is one of dm-reverb, which cannot tell.
          UnavailableError: If no server answers.
        """
        return CheckpointStatus.from_serialized_proto(self._client.checkpoint_status())

    def _nested(self, table: str, columns: list[Any]) -> Any:
        """A flat list nested like a table's signature, which is asked for anew if it differs."""
        unflatten = self._unflatten(table, refresh=False) or list
        try:
            return unflatten(columns)
        except SignatureMismatchError:
            unflatten = self._unflatten(table, refresh=True) or list
            return unflatten(columns)

    def _unflatten(self, table: str, *, refresh: bool) -> Callable[[list[Any]], Any] | None:
        """What nests a flat list like a table's signature; `None` without a signature."""
        if refresh or table not in self._signature_cache:
            self.server_info()
        if table not in self._signature_cache:
            raise TableNotFoundError(
                f"Server at {self._server_address} does not contain any table named {table}. "
                f"Found: {', '.join(sorted(self._signature_cache))}."
            )
        signature = self._signature_cache[table]
        return None if signature is None else functools.partial(_unflatten_as, table, signature)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {name: it for name, it in self._options.items() if it != DEFAULT_OPTIONS[name]}
        make = functools.partial(type(self), **options) if options else type(self)
        return make, (self._server_address,)

    def __repr__(self) -> str:
        return f"Client, server_address={self._server_address}"


def _unflatten_as(table: str, signature: Any, columns: list[Any]) -> Any:
    count = len(tree.flatten(signature))
    if count != len(columns):
        raise SignatureMismatchError(
            f"an item of table {table} has {len(columns)} columns, but the table's signature has "
            f"{count}; sample it with unpack_as_table_signature=False"
        )
    return tree.unflatten_as(signature, columns)
