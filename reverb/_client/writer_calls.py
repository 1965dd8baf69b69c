# SPDX-License-Identifier: Apache-2.0
"""The writers that both clients have: their text for both; see `calls.py`."""

from collections.abc import Sequence

from reverb._checks.arguments import check_at_least
from reverb._checks.byte_sizes import parse_byte_size
from reverb._checks.compression import Compression, compresses
from reverb._writers.legacy import with_pending_limit
from reverb._writers.sequence import SequenceWriter, sequence_options
from reverb.trajectory_writer import BatchedTrajectoryWriter, TrajectoryWriter


class Calls:
    def trajectory_writer(
        self,
        num_keep_alive_refs: int,
        *,
        validate_items: bool = True,
        match_names: bool = False,
        get_signature_timeout_ms: int | None = None,
        max_pending_bytes: int | str | None = None,
        compression: Compression | None = None,
    ) -> TrajectoryWriter:
        """Makes a writer whose items are arbitrary slices of its history.

        Blocks until the server has sent its tables' signatures, which are cached. Does not block if
        `validate_items` is False.

        Args:
          num_keep_alive_refs: Number of newest values of each column that new items may use.
          validate_items: Compares items with their table's signature before they are sent.
          match_names: Puts the columns of an item into the order of the signature by their names;
            unknown names are an error. `False`: columns are matched by position, as in dm-reverb,
            and names that differ are logged once for each table.
          get_signature_timeout_ms: Ignored; accepted for programs written for early versions of
            dm-reverb. The client's `connect_timeout_s` bounds the wait.
          max_pending_bytes: Limit of unconfirmed data, in bytes or a size such as "1GiB". At the
            limit, calls that create an item wait for confirmations, which a rate limiter may delay;
            a wait of more than 10 s is logged with its reason. A program that inserts and samples
            in one thread may then block itself. `None`: no limit; a writer that is faster than its
            server is slowed down, but does not wait for a rate limiter.
          compression: Compression of the chunks: `"auto"`, `"none"`, or `None` for that of the
            client; see `Client`.

        Raises:
          InvalidArgumentError: If a number is below 1, or if `compression` is another value.
          UnavailableError: If no server answers.
        """
        del get_signature_timeout_ms
        refs = check_at_least(1, "num_keep_alive_refs", num_keep_alive_refs, allows_bool=True)
        pending = parse_byte_size("max_pending_bytes", max_pending_bytes)
        packs = compresses(compression, self._compression)

        def make() -> TrajectoryWriter:
            options = (bool(validate_items), bool(match_names), packs)
            writer = self._client.trajectory_writer(refs, *options)
            return self._wrapped(TrajectoryWriter, with_pending_limit(writer, pending))

        return self._opened(make)

    def batched_trajectory_writer(
        self,
        batch_size: int,
        num_keep_alive_refs: int,
        *,
        validate_items: bool = True,
        max_pending_bytes: int | str | None = None,
        compression: Compression | None = None,
    ) -> BatchedTrajectoryWriter:
        """Makes one writer for `batch_size` environments that are stepped together.

        With 8 environments or more, the items of four steps are sent together, after about 3 ms,
        and at once if `flush` waits for them.

        Args:
          batch_size: Number of environments, `B`.
          num_keep_alive_refs: Number of newest values of each column and environment that new
            items may use. 1 is fastest: a step of all environments is then stored as one block.
          validate_items: As in `trajectory_writer`.
          max_pending_bytes: As in `trajectory_writer`.
          compression: As in `trajectory_writer`.

        Raises:
          InvalidArgumentError: If a number is below 1, or if `compression` is another value.
          UnavailableError: If no server answers.
        """
        batch_size = check_at_least(1, "batch_size", batch_size)
        refs = check_at_least(1, "num_keep_alive_refs", num_keep_alive_refs)
        pending = parse_byte_size("max_pending_bytes", max_pending_bytes)
        packs = compresses(compression, self._compression)

        def make() -> BatchedTrajectoryWriter:
            options = (batch_size, refs, bool(validate_items), packs)
            writer = self._client.batched_trajectory_writer(*options)
            writer = with_pending_limit(writer, pending)
            return self._wrapped(BatchedTrajectoryWriter, writer, batch_size)

        return self._opened(make)

    def sequence_writer(
        self,
        tables: str | Sequence[str],
        sequence_length: int | None,
        batch_size: int | None = None,
        *,
        stride_length: int = 1,
        max_sequence_length: int | None = None,
        drop_long_episodes: bool = False,
        max_pending_bytes: int | str | None = None,
        compression: Compression | None = None,
    ) -> SequenceWriter:
        """Makes a writer that turns every sequence of steps, or every episode, into an item.

        Blocks until the server has sent its tables' signatures, which are cached.

        Args:
          tables: Names of the tables; every item is inserted into each of them.
          sequence_length: Number of steps of an item, `L`; `None`: an item is a whole episode.
          batch_size: Number of environments that are stepped together, `B`; `None`: one
            environment, whose steps have no batch dimension.
          stride_length: Number of steps between the starts of two items: an episode makes items at
            its steps `L`, `L + stride_length`, `L + 2 * stride_length`, ...
          max_sequence_length: Number of steps of the longest episode. Required if items are
            episodes, and not allowed otherwise.
          drop_long_episodes: Drops and counts longer episodes instead of raising an error.
          max_pending_bytes: As in `trajectory_writer`.
          compression: As in `trajectory_writer`.

        Raises:
          InvalidArgumentError: If an argument is out of its range, or cannot be combined with
            `sequence_length`.
          TableNotFoundError: If the server lacks one of the tables.
          UnavailableError: If no server answers.
        """
        options = sequence_options(
            tables,
            sequence_length,
            batch_size,
            stride_length,
            max_sequence_length,
            drop_long_episodes,
        )
        pending = parse_byte_size("max_pending_bytes", max_pending_bytes)
        packs = compresses(compression, self._compression)

        def make() -> SequenceWriter:
            writer = self._client.sequence_writer(options, packs)
            writer = with_pending_limit(writer, pending)
            return self._wrapped(SequenceWriter, writer, batch_size)

        return self._opened(make)
