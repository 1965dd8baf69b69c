# SPDX-License-Identifier: Apache-2.0
"""A batch of items with rollouts, as a learner gets it."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from reverb._checks.arguments import check_bool
from reverb._client.chosen_items import fetched_keys
from reverb._client.ragged import Ragged
from reverb._client.rollout_items import Change, Changes, Columns, Parts, Taken
from reverb.core import protos
from reverb.errors import DataLossError, InvalidArgumentError
from reverb.replay_sample import BatchInfo, ReplayBatch
from reverb.shown_text import type_name

Column = np.ndarray | Ragged

__all__ = ["RolloutBatch", "batch_of", "changed", "check_ready", "split_balanced", "with_data"]


class Part(NamedTuple):
    """Items of a batch that are fetched together.

    Attributes:
      positions: Their positions in the batch.
      keys: Their keys, uint64 `[n]`.
      names: Names of the columns.
      indices: Positions of the columns in these items; `None`: all of them.
    """

    positions: list[int]
    keys: np.ndarray
    names: list[str]
    indices: list[int] | None


@dataclasses.dataclass(frozen=True)
class RolloutBatch:
    """`N` items with their `R` sequences, from `Client.take`. Pickles; calls no server.

    Example:
      >>> rollouts = [{"tokens": [1, 2], "score": 1.0}, {"tokens": [3, 4, 5], "score": 0.0}]
      >>> client.insert_item("rollouts", {"prompt": [7]}, rollouts, name="8")
      True
      >>> batch = client.take("rollouts", 1)
      >>> print(batch.name, batch.length, batch.data["tokens"].to_list())
      ['8'] [2 3] [array([1, 2], dtype=int32), array([3, 4, 5], dtype=int32)]
      >>> client.ack(batch)
      array([], dtype=uint64)

    Attributes:
      data: Columns by name: a `Ragged` over the `R` sequences, `[R, ...]` for columns that are a
        single step, and a `Ragged` over the `N` items or `[N, ...]` for columns of items. Empty
        without data.
      info: `BatchInfo` of the items, each `[N]`, with the probabilities of the take.
      name: Names of the items, a list of `N` texts.
      attempts: How often each item was lost or became stale before, int64 `[N]`.
      item: Position of the item of each sequence, int32 `[R]`.
      rollout: Number of its rollout, int32 `[R]`.
      oldest: Oldest version of the policy that made it, int64 `[R]`.
      newest: The newest one, int64 `[R]`.
      staleness: Versions that it is behind the table, int64 `[R]`.
      length: Its number of steps, int32 `[R]`.
      table: Name of the table.
      lease: Holder and number of the lease.
      is_whole: Whether the batch has all items of its lease.
    """

    data: dict[str, Column]
    info: BatchInfo
    name: list[str]
    attempts: np.ndarray
    item: np.ndarray
    rollout: np.ndarray
    oldest: np.ndarray
    newest: np.ndarray
    staleness: np.ndarray
    length: np.ndarray
    table: str
    lease: tuple[int, int]
    is_whole: bool
    _columns: Columns = dataclasses.field(repr=False)
    _each: tuple[tuple[int, ...], ...] = dataclasses.field(repr=False, default=())

    def __len__(self) -> int:
        return len(self.name)

    def select(self, indices: slice | Sequence[int] | np.ndarray) -> "RolloutBatch":
        """Returns some of the items, a copy; `indices` as of an array `[N]`."""
        rows = indices if isinstance(indices, slice | np.ndarray) else [*indices]
        chosen = np.arange(len(self))[rows]
        order = np.argsort(self.item, kind="stable")
        starts = np.searchsorted(self.item, np.arange(len(self) + 1))
        of_each = [order[starts[at] : starts[at + 1]] for at in chosen]
        sequences = np.concatenate(of_each) if of_each else np.zeros(0, np.int64)
        counts = [len(each) for each in of_each]
        of_items = self._columns.of_items
        return dataclasses.replace(
            self,
            data={
                name: _rows(column, chosen if name in of_items else sequences)
                for name, column in self.data.items()
            },
            info=BatchInfo(*(field[chosen] for field in self.info[:7])),
            name=[self.name[at] for at in chosen],
            attempts=self.attempts[chosen],
            item=np.repeat(np.arange(len(chosen), dtype=np.int32), counts),
            rollout=self.rollout[sequences],
            oldest=self.oldest[sequences],
            newest=self.newest[sequences],
            staleness=self.staleness[sequences],
            length=self.length[sequences],
            is_whole=False,
            _each=tuple(self._each[at] for at in chosen),
        )

    def _requests(self, columns: str | Sequence[str] | None) -> Iterator["Part"]:
        """Yields what to fetch: for items that have the same columns, their keys, and the columns.

        Args:
          columns: Names of the columns to fetch; `None`: all that each of the items has.
        """
        chosen = self._columns.chosen(columns)
        groups: dict[tuple[int, ...], list[int]] = {}
        for at, each in enumerate(self._each):
            groups.setdefault(each, []).append(at)
        for each, positions in groups.items():
            names = [self._columns.names[column] for column in each]
            wanted = [name for name in names if name in chosen]
            indices = None if len(wanted) == len(names) else [names.index(it) for it in wanted]
            if wanted:
                yield Part(positions, self.info.key[positions], wanted, indices)

    def _extension(self, columns: Mapping[str, object], overwrite: bool) -> Changes:
        """Returns the inserts of late columns, for each item at once."""
        if not isinstance(columns, Mapping) or not columns:
            got = "none" if isinstance(columns, Mapping) else type_name(columns)
            raise TypeError(f"columns must be a dict of columns by name, got {got}")
        found = {name: self._split(name, column) for name, column in columns.items()}
        changes = []
        row = 0
        for at, key in enumerate(self.info.key):
            parts = Parts(self._columns)
            count = int((self.item == at).sum())
            numbers: list[int] = []
            for index in range(row, row + count):
                rollout = int(self.rollout[index])
                number = numbers.count(rollout)
                numbers.append(rollout)
                values = {name: column[index] for name, column in found.items()}
                parts.add_sequence(rollout, number, values)
            row += count
            attempts = int(self.attempts[at])
            message = protos.ItemChange(
                overwrites=check_bool("overwrite", overwrite), attempts=attempts
            )
            message.lease.holder, message.lease.number = self.lease
            changes.append(parts.into(Change(int(key), 1.0), message))
        return Changes(self.table, changes)

    def _accepted(self, refused: Sequence[bytes]) -> np.ndarray:
        """Returns for each item whether the server took its change, bool `[N]`."""
        parse = protos.InsertStreamResponse.Refused.FromString
        return ~np.isin(self.info.key, [parse(it).key for it in refused])

    def _chosen(self, keys: object) -> Sequence[int] | None:
        """Returns keys of items for a call; `None` for all of the lease, if it has no others."""
        if keys is None:
            return None if self.is_whole else self.info.key.tolist()
        return fetched_keys(np.atleast_1d(np.asarray(keys))).tolist()

    def _split(self, name: str, column: object) -> Sequence[object]:
        """Returns the values of each sequence."""
        self._columns.check_of_sequences(name)
        if isinstance(column, Ragged):
            column = column.to_list()
        if not isinstance(column, Sequence | np.ndarray):
            raise TypeError(
                f"column {name} must be a Ragged or a sequence, got {type_name(column)}"
            )
        rows = [*column]
        if len(rows) != len(self.item):
            raise InvalidArgumentError(
                f"column {name} must have a row for each of the {len(self.item)} sequences, got "
                f"{len(rows)}"
            )
        return rows


def _rows(column: Column, rows: np.ndarray) -> Column:
    if not isinstance(column, Ragged):
        return column[rows]
    parts = [column.values[column.offsets[row] : column.offsets[row + 1]] for row in rows]
    ends = np.cumsum([0, *(len(part) for part in parts)]).astype(np.int32)
    values = np.concatenate(parts) if parts else column.values[:0]
    return Ragged.of_parts(values, ends)


def check_ready(batch: RolloutBatch) -> None:
    """Checks that a learner may ack the items.

    Raises:
      InvalidArgumentError: If they lacked a column when they were taken.
    """
    for name, each in zip(batch.name, batch._each, strict=True):
        missing = [it for at, it in enumerate(batch._columns.names) if at not in each]
        if missing:
            raise InvalidArgumentError(
                f"item {name} of table {batch.table} lacked column {missing[0]} when it was taken "
                "(take with lacks=), so it is not trained; add the column by extend, or release "
                "the item"
            )


def batch_of(taken: Taken) -> RolloutBatch:
    """Returns a batch of taken items without their columns."""
    items = taken.items
    places = np.arange(len(items), dtype=np.int32)
    of_item = np.repeat(places, [len(item.sequence_rollouts) for item in items])
    rollout = np.array([it for item in items for it in item.sequence_rollouts], np.int32)
    # The rollouts of an item are in the order of their numbers.
    made = [it for item in items for it in item.rollouts]
    keys = np.repeat(places, [len(item.rollouts) for item in items]).astype(np.int64) << 32
    keys += np.array([it.number for it in made], np.int64)
    of_made = np.searchsorted(keys, (of_item.astype(np.int64) << 32) + rollout)
    oldest = np.array([it.oldest for it in made], np.int64)[of_made]
    return RolloutBatch(
        data={},
        info=_info(items),
        name=[item.name for item in items],
        attempts=np.array([item.attempts for item in items], np.int64),
        item=of_item,
        rollout=rollout,
        oldest=oldest,
        newest=np.array([it.newest for it in made], np.int64)[of_made],
        staleness=np.maximum(taken.version - oldest, 0),
        length=np.array([it for item in items for it in item.sequence_lengths], np.int32),
        table=taken.columns.table,
        lease=taken.lease,
        is_whole=True,
        _columns=taken.columns,
        _each=tuple(tuple(item.columns) for item in items),
    )


def _info(items: list) -> BatchInfo:
    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(item, name) for item in items], dtype)

    return BatchInfo(
        column("key", np.uint64),
        column("probability", np.float64),
        column("table_size", np.int64),
        column("priority", np.float64),
        column("times_sampled", np.int32),
        np.zeros(len(items)),
        np.zeros(len(items), np.int64),
    )


def with_data(batch: RolloutBatch, parts: Sequence[tuple[Part, ReplayBatch]]) -> RolloutBatch:
    """Returns a batch with columns: those that all of its parts have."""
    columns = batch._columns
    shared = set.intersection(*(set(part.names) for part, _ in parts)) if parts else set()
    data: dict[str, Column] = {}
    for part, fetched in parts:
        if len(fetched.data) != len(part.names):
            raise changed(batch)
    for name in columns.names:
        if name not in shared:
            continue
        found = [fetched.data[part.names.index(name)] for part, fetched in parts]
        positions = [part.positions for part, _ in parts]
        whole = found[0] if len(found) == 1 else _together(found, positions)
        if name in columns.of_items or not isinstance(whole, Ragged):
            data[name] = whole
        elif columns.has_steps[name]:
            ends = np.concatenate([[0], np.cumsum(batch.length)]).astype(np.int32)
            if ends[-1] != len(whole.values):
                raise changed(batch)
            data[name] = Ragged.of_parts(whole.values, ends)
        elif len(whole.values) == len(batch.length):
            data[name] = whole.values
        else:
            raise changed(batch)
    return dataclasses.replace(batch, data=data)


def changed(batch: RolloutBatch) -> DataLossError:
    """Returns the error for items that are not as they were when they were taken."""
    return DataLossError(
        f"items of table {batch.table} have changed since they were taken: this client does not "
        "hold them any more. Take again"
    )


def _together(columns: list[Column], positions: list[list[int]]) -> Column:
    """Returns the rows of several groups in the order of their positions."""
    order = np.argsort(np.concatenate(positions), kind="stable")
    packed = [column for column in columns if isinstance(column, Ragged)]
    if packed:
        return _rows(Ragged.concatenate(packed), order)
    return np.concatenate([np.asarray(column) for column in columns])[order]


def split_balanced(
    lengths: object,
    *,
    parts: int | None = None,
    max_tokens: int | None = None,
    cost: str = "tokens",
) -> list[np.ndarray]:
    """Divides sequences into parts of about the same cost.

    Greedy: the longest sequence goes to the part that has least so far (Graham's LPT rule, SIAM J.
    Appl. Math. 17, 1969: at most 4/3 of the best possible largest part).

    Example:
      >>> [part.tolist() for part in reverb.split_balanced([5, 3, 4, 2], parts=2)]
      [[0, 3], [2, 1]]

    Args:
      lengths: Number of tokens of each sequence, integers `[R]`.
      parts: Number of parts, at least 1; give this or `max_tokens`.
      max_tokens: Most tokens of a part; as few parts as the rule finds.
      cost: `"tokens"`: a sequence costs its length. `"squared"`: its square, as attention.

    Returns:
      For each part the positions of its sequences, int64, the largest first.

    Raises:
      InvalidArgumentError: If not exactly one of `parts` and `max_tokens` is given, or a sequence
        is longer than `max_tokens`.
    """
    tokens = np.asarray(lengths, np.int64)
    if (parts is None) == (max_tokens is None):
        raise InvalidArgumentError("give either parts or max_tokens")
    if cost not in ("tokens", "squared"):
        raise InvalidArgumentError(f'cost must be "tokens" or "squared", got {cost!r}')
    costs = tokens if cost == "tokens" else tokens.astype(np.float64) ** 2
    order = np.argsort(-costs, kind="stable")
    if parts is not None:
        if parts < 1:
            raise InvalidArgumentError(f"parts must be at least 1, got {parts}")
        return _into_parts(order, costs, parts)
    assert max_tokens is not None
    longest = int(tokens.max(initial=0))
    if longest > max_tokens:
        raise InvalidArgumentError(
            f"max_tokens must be at least the longest sequence ({longest}), got {max_tokens}"
        )
    count = max(1, -(-int(tokens.sum()) // max_tokens))
    while True:
        found = _into_parts(order, costs, count)
        if all(tokens[part].sum() <= max_tokens for part in found):
            return found
        count += 1


def _into_parts(order: np.ndarray, costs: np.ndarray, parts: int) -> list[np.ndarray]:
    sums = np.zeros(parts)
    found: list[list[int]] = [[] for _ in range(parts)]
    for at in order:
        least = int(np.argmin(sums))
        found[least].append(int(at))
        sums[least] += costs[at]
    return [np.array(part, np.int64) for part in found]


# Its public import path.
RolloutBatch.__module__ = "reverb"
