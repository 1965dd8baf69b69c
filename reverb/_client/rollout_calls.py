# SPDX-License-Identifier: Apache-2.0
"""Calls about items with rollouts: their text for both clients; see `calls.py`."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from reverb._checks.arguments import (
    check_at_least,
    check_bool,
    check_int64,
    check_integer,
    check_timeout_ms,
    check_type,
)
from reverb._client.rollout_batch import RolloutBatch, batch_of, changed, check_ready, with_data
from reverb._client.rollout_items import (
    MOST_TAKES,
    Columns,
    OpenItem,
    Taken,
    all_of,
    check_rollout,
    fetch_request,
    held_by_others,
    opening,
    settle_fields,
    take_request,
    was_inserted,
)
from reverb._client.small_calls import answer_of, request_of
from reverb.errors import DataLossError, InvalidArgumentError, ReverbError
from reverb.replay_sample import ReplayBatch


class Calls:
    def insert_item(
        self,
        table: str,
        data: Mapping[str, object],
        rollouts: Sequence[object] | None = None,
        *,
        name: str | None = None,
        after: str | None = None,
        priority: float = 1.0,
        version: int | tuple[int, int] | None = None,
        timeout_ms: int | None = None,
    ) -> bool:
        """Inserts an item into a table with rollouts: a prompt, with rollouts or without.

        Blocks until the server has confirmed it, so also while the backlog is full. If
        Ctrl-C or an error ends the call, it may be inserted all the same; its name tells.

        Example:
          >>> client.insert_item("rollouts", {"prompt": np.int32([1, 2])}, name="17")
          True

        Args:
          table: Name of the table, which has `rollouts`.
          data: Columns that an item has once, by name: all of them.
          rollouts: Rollouts that it has from the beginning, numbered from 0: each a dict of
            columns, or a list of dicts, one for each sequence. With all of them the item is ready
            at once.
          name: Its name, of 1 to 256 bytes. `None`: a random one.
          after: Name of the item that has to be the newest one before it; `""`: none. A feeder that
            passes it loses and repeats no prompt, whatever restarts.
          priority: Its priority, or `reverb.MAX_PRIORITY`.
          version: Version of the policy that made the rollouts, or the oldest and the newest one.
            `None`: that of the table.
          timeout_ms: How long it may wait for the backlog, in milliseconds; `None`: any time.

        Returns:
          `False` if an item of that name is there; nothing has changed then.

        Raises:
          DeadlineExceededError: After `timeout_ms`. It may have been inserted just before.
          FailedPreconditionError: If the newest item is another one than `after`, or if the table
            has no rollouts.
          InvalidArgumentError: If a column is missing, or is one of sequences.
          SignatureMismatchError: If a column does not match the signature.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server does not know rollouts.
        """
        check_rollout(None, version)
        limit_ms = check_timeout_ms(timeout_ms)
        columns = self._rollout_columns(table)
        changes = opening(columns, data, rollouts, name, after, priority, version, limit_ms)
        return was_inserted(self._change_items(changes), table, after)

    @contextlib.contextmanager
    def open_item(self, table: str, *, timeout_ms: int | None = None) -> Iterator[OpenItem]:
        """Takes the oldest item that lacks rollouts and is free, for a `with` block.

        Blocks until there is one. At the end of the block it is free again for others, with the
        rollouts that it has, unless it lacks none.

        Args:
          table: Name of the table, which has `rollouts`.
          timeout_ms: How long to wait for an item, in milliseconds; `None`: any time.

        Yields:
          The `OpenItem`.

        Raises:
          FailedPreconditionError: If the table has no rollouts.
          DeadlineExceededError: After `timeout_ms`.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server does not know rollouts.
        """
        limit_ms = check_timeout_ms(timeout_ms)
        columns = self._rollout_columns(table)
        request = take_request(columns, "open", 1, None, False, limit_ms)
        tries = 0
        while True:
            tries += 1
            taken = Taken(columns, self._client.new_lease())
            with taken.kept(self._client):
                taken.read(self._client.take(request, taken.lease[1]))
                item = self._read_open(taken, tries)
            if item is not None:
                break
        settle = settle_fields(table, taken.lease, None, False)
        try:
            yield item
            with contextlib.suppress(ReverbError):
                self._client.call(*request_of("Settle", **settle))
        except BaseException:
            taken.give_up(self._client)
            raise

    def add_rollout(
        self,
        item: OpenItem,
        sequences: object,
        *,
        rollout: int | None = None,
        version: int | tuple[int, int] | None = None,
        partial: bool = False,
    ) -> bool:
        """Adds a rollout to an open item.

        Blocks until the server has confirmed it, which waits for nothing.

        Args:
          item: The item, from `open_item`.
          sequences: A dict of columns `[T, ...]`, or of single steps; or a list of dicts, one for
            each sequence. Columns may be left out and come later, by `extend`.
          rollout: Its number. `None`: the first one that is missing.
          version: Version of the policy that made it, or the oldest and the newest one. `None`:
            that of the table when the item was taken.
          partial: Whether it is only stored, for another generator if this one is lost, and
            replaced by the next one of this number.

        Returns:
          `False` if the item is no longer this client's: it became stale, was held for too long, or
          was trained on. Stop generating then. A final rollout that is there stays, and counts as
          added.

        Raises:
          InvalidArgumentError: If there is no such column or rollout, or if sequences differ in
            their columns.
          SignatureMismatchError: If a column does not match the signature.
          UnavailableError: If no server answers.
        """
        check_rollout(rollout, version)
        check_type("item", item, OpenItem, "open_item")
        with item._making(rollout, partial) as number:
            return not self._change_items(item._growth(sequences, number, version, partial))

    def fail_rollout(self, item: OpenItem, rollout: int, reason: str) -> bool:
        """Says that a rollout of an open item will not be made.

        With enough other ones (`min_rollouts`) the item is trained without it, else it leaves.

        Args:
          item: The item, from `open_item`.
          rollout: Its number.
          reason: Text for people, which the server logs.

        Returns:
          `False` if the item is no longer this client's.

        Raises:
          InvalidArgumentError: If there is no such rollout.
          UnavailableError: If no server answers.
        """
        check_integer("rollout", rollout)
        check_type("item", item, OpenItem, "open_item")
        with item._making(rollout, False) as number:
            failed = request_of("FailRollout", **item._failure(number, reason))
            return answer_of("FailRollout", self._client.call(*failed)).is_accepted

    def take(
        self,
        table: str,
        num_items: int,
        *,
        lacks: str | None = None,
        columns: str | Sequence[str] | None = None,
        with_data: bool = True,
        ack: bool = False,
        partial: bool = False,
        timeout_ms: int | None = None,
    ) -> RolloutBatch:
        """Takes items out of a table with rollouts; this client holds them from then on.

        Blocks until all of them are there; with `on_stale="wait"` also while it would leave older
        ones that are not ready, and too many to be taken in time. Nobody else gets them until
        `ack`, after which they are trained, or `release`, or until this client is lost, after which
        they are as before. An ack may come hours later: ack when the checkpoint of your model is on
        disk, and a trainer that died before gets the same items again.

        Args:
          table: Name of the table, which has `rollouts`.
          num_items: Number of items, at least 1, chosen by the sampler of the table; with
            `on_stale="wait"` those with the oldest tokens.
          lacks: Takes items that are not ready, because their sequences lack this column, oldest
            first: for a stage that adds it by `extend`. `None`: ready items.
          columns: Names of the columns to fetch, or one; `None`: all that the items have.
          with_data: `False`: only takes; `fetch_rollouts` gets columns.
          ack: Whether they are acked when their data is here.
          partial: After the timeout, takes what there is, at least one item. It waits the whole
            timeout for the others, also at the end of a run, when no more come.
          timeout_ms: How long to wait, in milliseconds; `None`: any time.

        Returns:
          The `RolloutBatch`.

        Raises:
          FailedPreconditionError: If the table has no rollouts.
          InvalidArgumentError: If the backlog never has so many items, if there is no such column,
            or for `ack` with `lacks`.
          DeadlineExceededError: After `timeout_ms`.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server does not know rollouts.
        """
        limit_ms = check_timeout_ms(timeout_ms)
        num_items = check_at_least(1, "num_items", num_items)
        if ack and lacks is not None:
            raise InvalidArgumentError(
                f"ack=True trains items, and those that lack column {lacks} are not ready; add it "
                "by extend"
            )
        known = self._rollout_columns(table)
        request = take_request(known, "ready", num_items, lacks, partial, limit_ms)
        known.chosen(columns)
        for tries_left in reversed(range(MOST_TAKES)):
            taken = Taken(known, self._client.new_lease())
            try:
                with taken.kept(self._client):
                    taken.read(self._client.take(request, taken.lease[1]))
                    batch = batch_of(taken)
                    if with_data:
                        batch = self.fetch_rollouts(batch, columns)
                    if ack:
                        self.ack(batch)
                    return batch
            except DataLossError:
                # They became stale, or the server another one, after they were taken.
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def fetch_rollouts(
        self, batch: RolloutBatch, columns: str | Sequence[str] | None = None
    ) -> RolloutBatch:
        """Returns a batch with the columns of its items, which this or another client holds.

        Args:
          batch: The batch, for example without data, or a `select` of it from another process.
          columns: Names of the columns to fetch, or one; `None`: all that the items have.

        Raises:
          DataLossError: If an item has left the table.
          InvalidArgumentError: If there is no such column.
          UnavailableError: If no server answers.
        """
        check_type("batch", batch, RolloutBatch, "take")
        fetched = []
        for part in batch._requests(columns):
            try:
                rows = self._fetch_rows(batch.table, part.keys, part.indices)
            except InvalidArgumentError:
                # Their columns differ, and were the same when they were taken.
                raise changed(batch) from None
            fetched.append((part, rows))
        return with_data(batch, fetched)

    def extend(
        self, batch: RolloutBatch, columns: Mapping[str, object], *, overwrite: bool = False
    ) -> np.ndarray:
        """Adds late columns to the sequences of items that this client has taken by `lacks`.

        Blocks until the server has confirmed them. Items that lack no column are ready then.

        Args:
          batch: The items, from `take(lacks=...)`.
          columns: By name a `Ragged` or a sequence over all `R` sequences of the batch, in their
            order.
          overwrite: Whether columns that are there already are replaced.

        Returns:
          bool `[N]`: `False` for an item that is no longer this client's, for example because it
            became stale and its rollouts are made once more. Nothing of it has changed; take again.

        Raises:
          InvalidArgumentError: If there is no such column, or another number of rows.
          SignatureMismatchError: If a column does not match the signature.
          UnavailableError: If no server answers.
        """
        check_type("batch", batch, RolloutBatch, "take")
        refused = self._change_items(batch._extension(columns, overwrite))
        return batch._accepted(refused)

    def ack(self, batch: RolloutBatch, keys: object = None) -> np.ndarray:
        """Says that items are trained: they count as sampled, and leave if that was the last time.

        Blocks until the server answers. An ack that comes twice does no harm. It holds also for an
        item that is not ready any more, because the server has gone back to a checkpoint.

        Args:
          batch: Items from `take`.
          keys: Keys of some of them, integers `[n]`; `None`: all.

        Returns:
          uint64 `[M]`: keys that another client holds now, because this one was lost in between.

        Raises:
          InvalidArgumentError: If the items were taken by `lacks`: they are not trained.
          UnavailableError: If no server answers.
        """
        check_type("batch", batch, RolloutBatch, "take")
        check_ready(batch)
        # By their keys, because the lease may have ended: then they are trained all the same.
        chosen = batch._chosen(batch.info.key if keys is None else keys)
        settle = settle_fields(batch.table, batch.lease, chosen, True)
        return held_by_others(self._client.call(*request_of("Settle", **settle)))

    def release(self, batch: RolloutBatch, keys: object = None) -> None:
        """Gives items back: they are where they were, for whoever takes next.

        Args:
          batch: Items from `take`.
          keys: Keys of some of them, integers `[n]`; `None`: all.

        Raises:
          UnavailableError: If no server answers.
        """
        check_type("batch", batch, RolloutBatch, "take")
        settle = settle_fields(batch.table, batch.lease, batch._chosen(keys), False)
        self._client.call(*request_of("Settle", **settle))

    def set_version(self, table: str, version: int, *, rewind: bool = False) -> int:
        """Sets the version of the policy of a table with rollouts.

        Staleness counts from it, and it frees the backlog. Call it when generators can have the
        weights of that version, not when the step counter moves.

        Args:
          table: Name of the table.
          version: The version. One that is not larger than the present one is ignored.
          rewind: Whether a smaller one counts, too: for a trainer that resumes.

        Returns:
          The version now.

        Raises:
          FailedPreconditionError: If the table has no rollouts.
          TableNotFoundError: If there is no such table.
          UnavailableError: If no server answers.
          UnimplementedError: If the server does not know rollouts.
        """
        fields = {
            "version": check_int64("version", version),
            "rewind": check_bool("rewind", rewind),
        }
        answer = self._client.call(*request_of("SetVersion", table=table, **fields))
        return answer_of("SetVersion", answer).version

    def _rollout_columns(self, table: str) -> Columns:
        """Returns the columns of a table with rollouts; asks the server the first time."""
        known = self._rollout_tables.get(table)
        if known is None:
            known = self._rollout_tables[table] = Columns(table, self.server_info())
        return known

    def _read_open(self, taken: Taken, tries: int) -> OpenItem | None:
        """Returns the open item that was taken; `None` if it became stale or left in between."""
        item = None
        try:
            taken.check_open()
            key = np.array([taken.items[0].key], np.uint64)
            item = taken.open_item(self._fetch_rows(taken.columns.table, key, None))
        except DataLossError:
            if tries >= MOST_TAKES:
                raise
        finally:
            if item is None:
                taken.give_up(self._client)
        return item

    def _fetch_rows(self, table: str, keys: np.ndarray, indices: list[int] | None) -> ReplayBatch:
        """Returns the items of these keys, packed, as a flat batch."""
        request = fetch_request(table, len(keys), indices)
        return all_of(table, keys, request.flat_batch(self._client.fetch(request, keys)))
