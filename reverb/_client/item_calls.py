# SPDX-License-Identifier: Apache-2.0
"""Calls about stored items, by key or condition: their text for both clients; see `calls.py`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, overload

from reverb._checks.arguments import check_table
from reverb._client.batch_request import BatchRequest
from reverb._client.chosen_items import deletions_of, fetched_keys
from reverb._client.rows import updates_of
from reverb._client.small_calls import answer_of
from reverb._client.where import Where, condition_of
from reverb.core import native
from reverb.replay_sample import ReplayBatch, ReplaySample


class Calls:
    @overload
    def scan(
        self,
        table: str,
        *,
        unpack_as_table_signature: bool = False,
        with_inserted_at: Literal[False] = False,
        columns: object = None,
        where: Where | None = None,
        partial: bool = False,
    ) -> Iterator[ReplaySample]: ...

    @overload
    def scan(
        self,
        table: str,
        *,
        unpack_as_table_signature: bool = False,
        with_inserted_at: Literal[True],
        columns: object = None,
        where: Where | None = None,
        partial: bool = False,
    ) -> Iterator[tuple[float, ReplaySample]]: ...

    @overload
    def scan(
        self,
        table: str,
        *,
        unpack_as_table_signature: bool = False,
        with_inserted_at: bool,
        columns: object = None,
        where: Where | None = None,
        partial: bool = False,
    ) -> Iterator[Any]: ...

    def scan(
        self,
        table: str,
        *,
        unpack_as_table_signature: bool = False,
        with_inserted_at: bool = False,
        columns: object = None,
        where: Where | None = None,
        partial: bool = False,
    ) -> Iterator[Any]:
        """Reads every item of a table once, oldest first, without sampling.

        A scan changes no counters, and a closed rate limiter does not delay it. Use it for exports,
        checks and deterministic passes over a table.

        The scan begins when its first item is taken. It covers the items that are in the table at
        that moment. Items that are inserted later are not included; items that are removed
        before the scan reaches them are skipped, unless they were prefetched (20 MiB at most). Each
        item is read in its current state, so priorities may be of different moments. Writers are
        not delayed. Items come in the order of insertion; updates of priorities do not change it.

        Blocks while it waits for the server. Closing or dropping the iterator also ends the scan
        on the server. With several servers behind the address, one of them is scanned. A group of
        servers must be complete, unless the scan is `partial`.

        Args:
          table: Name of the table.
          unpack_as_table_signature: As in `sample`.
          with_inserted_at: Yields pairs `(inserted_at, sample)`, with the time of insertion as a
            float in seconds since 1970.
          columns: As in `sample_batch`; the others are neither sent nor decoded.
          where: Only the items that fulfil this condition, when the scan begins and when it reads
            them. `None`: all.
          partial: Leaves out the shards of a group that do not answer within 1.2 s when the scan
            begins, and logs a warning; `status().shards` has their states. A shard that is lost
            later ends the scan with an error.

        Yields:
          A `ReplaySample` with leaves `[T, ...]`, or `[...]` for a column that is a single step;
          the same data as from `sample(..., emit_timesteps=False)`. In its `info`, `times_sampled`
          is the count so far, `table_size` and `priority` are those of the moment of reading, and
          `probability` is 0.0.

        Raises:
          InvalidArgumentError: If there is no such column.
          TableNotFoundError: If there is no such table.
          TypeError: If `where` is not a `reverb.Where`.
          UnavailableError: If no server answers, or if it stops during the scan.
          UnimplementedError: If the server is a dm-reverb server, which cannot scan; with `columns`
            or `where`, also if it is of an earlier release.
        """

        def start() -> native.Sampler:
            check_table(table)
            condition = condition_of(where).SerializeToString()
            nested = self._nested_as_now(table) if unpack_as_table_signature else None
            indices = []
            if columns is not None:
                choice = self._choice(table, columns)
                indices = choice.indices
                nested = choice.nested if unpack_as_table_signature else None
            return self._client.scanner(
                table, indices, condition, partial, with_inserted_at, nested
            )

        return self._items(start)

    def fetch(
        self,
        table: str,
        keys: object,
        *,
        columns: object = None,
        ragged: Literal["error", "pad", "packed"] = "error",
        pad: object = 0,
        pad_to_multiple_of: int | None = None,
        squeeze: bool = False,
        unpack_as_table_signature: bool = False,
        max_batch_bytes: int | str | None = None,
    ) -> ReplayBatch:
        """Reads the items of some keys, without sampling, and stacks them into one batch.

        Changes nothing: no item counts as sampled or leaves the table by it, and a closed rate
        limiter does not delay it. Keys that are not in the table, for example because their items
        were evicted, are left out; `info.key` of the batch has those that are there.

        Blocks until the server answers. A few thousand keys are read at a time, so items may be of
        different moments. A group of servers must be complete, because no other shard knows
        whether the items of a missing shard are gone. With several servers behind the address, one
        of them is asked.

        Example:
          >>> keys = client.sample_batch("table", 1).info.key
          >>> print(client.fetch("table", keys).data[0].shape)
          (1, 1, 4)

        Args:
          table: Name of the table.
          keys: Keys of items, integers `[N]`; as in `update_priorities`.
          columns: As in `sample_batch`.
          ragged: As in `sample_batch`.
          pad: As in `sample_batch`.
          pad_to_multiple_of: As in `sample_batch`.
          squeeze: As in `sample_batch`.
          unpack_as_table_signature: As in `sample_batch`.
          max_batch_bytes: As in `sample_batch`.

        Returns:
          A `ReplayBatch` as from `sample_batch`, with a row for each key that is there, in the
          order of `keys`; a key that is there twice has two rows. In its `info`, `times_sampled` is
          the count so far, and `probability`, `min_probability` and `epoch` are 0. If no key is
          there, its arrays have no rows: the columns are those of the signature, `[0, T, ...]`,
          with 0 for sizes that the signature leaves open; without a signature `data` is an empty
          list.

        Raises:
          InvalidArgumentError: If the items' dtypes or shapes differ, or if there is no such
            column.
          DataLossError: If an item is damaged.
          ResourceExhaustedError: If the batch would take more than `max_batch_bytes`, or more
            memory than there is.
          TableNotFoundError: If there is no such table.
          TypeError: If `keys` are not integers.
          UnavailableError: If no server answers.
          UnimplementedError: If the server is a dm-reverb server, or of an earlier release.
        """
        keys = fetched_keys(keys)
        request = BatchRequest(
            table,
            max(len(keys), 1),
            None,
            False,
            ragged,
            pad,
            pad_to_multiple_of,
            columns,
            False,
            squeeze,
            None,
            max_batch_bytes,
        )
        if request.needs_choice:
            request.choose(self._choice(table, columns))
        answer = self._client.fetch(request, keys)
        if answer.num_items:
            batch = request.flat_batch(answer)
        else:
            batch = request.empty_batch(answer, self._choice(table, columns))
        return self._finished(request, batch, unpack_as_table_signature)

    def delete_items(self, table: str, keys: object = None, *, where: Where | None = None) -> int:
        """Deletes items by their keys, by a condition, or by both.

        Keys that are not in the table are ignored. With a condition alone, the items that are in
        the table when the call begins are checked.

        Blocks until the items are deleted. Some thousand are checked and deleted at a time, and
        other calls run in between, so it is no single change: an error may leave a part of them
        deleted. If a connection breaks, the call is repeated, and items that were deleted before
        are not in its number. A group of servers must be complete; otherwise nothing is deleted.
        With several servers behind the address, the call reaches one of them.

        If items may be sampled `max_times_sampled` times, the rate limiter counts samples as taken
        that only the deleted items allowed. So a queue has room for as many others.

        Example:
          >>> client.delete_items("table", where=reverb.Where(priority=(None, 0.1)))
          0

        Args:
          table: Name of the table.
          keys: Keys of items, integers `[N]`; as in `update_priorities`. `None`: any.
          where: Only the items that fulfil this condition. `None`: any.

        Returns:
          Number of deleted items.

        Raises:
          InvalidArgumentError: If there are neither keys nor a bound; `reset` removes all items.
          TableNotFoundError: If there is no such table.
          TypeError: If `keys` are not integers, or `where` is not a `reverb.Where`.
          UnavailableError: If no server answers.
          UnimplementedError: If the server is a dm-reverb server, or of an earlier release; for
            keys there is `mutate_priorities`.
        """
        num_deleted = 0
        for request in deletions_of(table, keys, where):
            answer = answer_of("DeleteItems", self._client.call("DeleteItems", request))
            num_deleted += answer.num_deleted
        return num_deleted

    def mutate_priorities(
        self,
        table: str,
        updates: Mapping[int, float] | None = None,
        deletes: Sequence[int] | None = None,
    ) -> None:
        """Deletes items, then updates priorities of others.

        Keys of items that are not in the table, for example because they were evicted, are ignored.
        With several servers behind the address, the call reaches one of them, which may not be the
        server that holds the item.

        Args:
          table: Name of the table.
          updates: New priorities by key.
          deletes: Keys of items to delete.

        Raises:
          InvalidArgumentError: If the table rejects a priority.
          TableNotFoundError: If there is no such table.
          TypeError: If a key is not a uint64, or a priority is not a number.
          UnavailableError: If no server answers.
        """
        check_table(table)
        self._client.mutate_priorities(table, updates, deletes)

    def update_priorities(self, table: str, keys: object, priorities: object) -> None:
        """Updates priorities from arrays; otherwise as `mutate_priorities`, and faster.

        If a key occurs several times, its last priority counts. Keys that are not in the table, for
        example because their items were evicted, are ignored.

        Args:
          table: Name of the table.
          keys: Integers `[B]`, such as `sample.info.key`, of any integer dtype. Negative int64 are
            taken as the uint64 of the same bits, for libraries without uint64. Arrays of NumPy, or
            of anything that speaks DLPack, such as tensors of PyTorch on the CPU.
          priorities: New priorities `[B]` of any float or integer dtype, also of tensors, or one
            number for all.

        Raises:
          InvalidArgumentError: If there is not one priority for each key, if the table rejects a
            priority, or if a tensor is not in CPU memory; then nothing is changed.
          TableNotFoundError: If there is no such table.
          TypeError: If `keys` are not integers.
          UnavailableError: If no server answers.
        """
        self._client.update_priorities(*updates_of(table, keys, priorities))
