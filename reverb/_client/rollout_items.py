# SPDX-License-Identifier: Apache-2.0
"""Items with rollouts in calls of both clients: what they send, and what they have taken."""

import bisect
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reverb._checks.arguments import check_bool, check_int64, check_integer
from reverb._client.batch_request import BatchRequest
from reverb._client.small_calls import answer_of, table_among
from reverb._rollouts.settings import RolloutsInfo, column_names
from reverb.core import native, protos
from reverb.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ReverbError,
)
from reverb.replay_sample import ReplayBatch
from reverb.reverb_types import TableInfo
from reverb.shown_text import type_name

__all__ = [
    "MOST_TAKES",
    "Change",
    "Changes",
    "Columns",
    "OpenItem",
    "Parts",
    "Taken",
    "all_of",
    "check_rollout",
    "fetch_request",
    "held_by_others",
    "opening",
    "settle_fields",
    "take_request",
    "was_inserted",
]

# Takes of one call whose items change before they are read.
MOST_TAKES = 16

# How `take` names what it takes.
_TAKES = {"ready": 0, "open": 1, "lacking": 2}


class Columns:
    """The columns of a table whose items have rollouts.

    Attributes:
      table: Name of the table.
      info: What the server said last of its rollouts.
      names: Names of all columns, in the order of items.
      of_items: Those that an item has once.
    """

    def __init__(self, table: str, infos: Mapping[str, TableInfo]) -> None:
        """Finds the table among those of the server.

        Raises:
          FailedPreconditionError: If it has no rollouts.
          TableNotFoundError: If there is no such table.
        """
        info = table_among(infos, table)
        if info.rollouts is None:
            raise FailedPreconditionError(
                f"Table {table} has no rollouts (Table(rollouts=...)); use sample_batch."
            )
        self.table = table
        self.info: RolloutsInfo = info.rollouts
        self.names = column_names(info.signature)
        self.of_items = frozenset(self.info.settings.item)
        signature = info.signature or {}
        # A column of steps has one dimension more than its values.
        self.has_steps = {name: _has_steps(signature[name]) for name in self.names}
        self._dtypes = {name: _dtype(signature[name]) for name in self.names}

    def position(self, name: str) -> int:
        """Returns the position of a column.

        Raises:
          InvalidArgumentError: If there is no such column.
        """
        try:
            return self.names.index(name)
        except ValueError:
            raise InvalidArgumentError(
                f"table {self.table} has no column {name!r}; its columns are "
                f"{', '.join(self.names)}"
            ) from None

    def array(self, name: str, value: object) -> np.ndarray:
        """Returns a value as an array; scalars and lists of Python get the column's dtype."""
        dtype = self._dtypes[name]
        if isinstance(value, np.generic) and dtype is not None:
            return _in_dtype(value, dtype)
        array = np.asarray(value)
        is_given = isinstance(value, np.ndarray) or hasattr(value, "__array__")
        # Numbers with fractions would lose them in a column of integers.
        is_whole = dtype is not None and dtype.kind in "biu"
        if is_given or (is_whole and array.size > 0 and array.dtype.kind in "fc"):
            return array
        return np.asarray(value, dtype)

    def chosen(self, columns: str | Sequence[str] | None) -> list[str]:
        """Returns the names of the argument `columns` of a call; all for `None`.

        Raises:
          InvalidArgumentError: If there is no such column.
        """
        names = [columns] if isinstance(columns, str) else columns
        if not isinstance(names, Iterable | None):
            raise TypeError(f"columns must be names of columns or None, got {type_name(names)}")
        for name in names or ():
            self.position(name)
        return self.names if names is None else [*names]

    def check_of_sequences(self, name: str) -> None:
        """Raises InvalidArgumentError for a column of items."""
        self.position(name)
        if name in self.of_items:
            raise InvalidArgumentError(
                f"Column {name} of table {self.table} is one of items, not of sequences."
            )


def _in_dtype(scalar: np.generic, dtype: np.dtype) -> np.ndarray:
    """Returns a scalar in a dtype of its kind, which holds it; else as it is."""
    array = np.asarray(scalar)
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        converted = array.astype(dtype)
        return converted if converted == array else array
    return array.astype(dtype) if np.can_cast(array.dtype, dtype, "same_kind") else array


def _has_steps(spec: object) -> bool:
    shape = getattr(spec, "shape", None)
    dims = None if shape is None else tuple(shape)
    return dims is None or (len(dims) > 0 and dims[0] is None)


def _dtype(spec: object) -> np.dtype | None:
    dtype = getattr(spec, "dtype", None)
    try:
        return np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    except TypeError:
        return None


@dataclasses.dataclass
class Change:
    """A change of one item, for the core: its columns, and what they are for.

    Attributes:
      key: Key of the item; `None` for a new one.
      priority: Its priority.
      message: A serialized `ItemChange`.
      leaves: Columns `[T, ...]`, one for each part.
      single: Whether each of them is a single step.
    """

    key: int | None
    priority: float
    message: bytes = b""
    leaves: list[np.ndarray] = dataclasses.field(default_factory=list)
    single: list[bool] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Changes:
    """Changes of items of one table, for the core.

    Attributes:
      table: Name of the table.
      changes: The changes.
      timeout_s: How long they may wait; `None`: any time.
    """

    table: str
    changes: list[Change]
    timeout_s: float | None = None


class Parts:
    """The columns of a change, with their places."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._found: dict[tuple[int, int, int], tuple[np.ndarray, bool]] = {}

    def add_item(self, data: Mapping[str, object]) -> None:
        """Adds columns that an item has once."""
        for name, value in data.items():
            if name not in self._columns.of_items:
                self._columns.position(name)
                raise InvalidArgumentError(
                    f"Column {name} of table {self._columns.table} is one of sequences, not of "
                    "items."
                )
            self._add(-1, 0, name, value)

    def add_sequence(self, rollout: int, number: int, sequence: Mapping[str, object]) -> None:
        """Adds columns of a sequence."""
        for name, value in sequence.items():
            self._columns.check_of_sequences(name)
            self._add(rollout, number, name, value)

    def _add(self, rollout: int, number: int, name: str, value: object) -> None:
        array = self._columns.array(name, value)
        single = not self._columns.has_steps[name]
        self._found[rollout, number, self._columns.position(name)] = (
            array[None] if single else array,
            single,
        )

    def into(self, change: Change, message: Any) -> Change:
        """Puts them into a change with this `ItemChange` message."""
        for (rollout, number, column), (array, single) in sorted(
            self._found.items(), key=lambda it: it[0]
        ):
            part = message.parts.add(column=column, sequence=number)
            if rollout >= 0:
                part.rollout = rollout
            change.leaves.append(array)
            change.single.append(single)
        change.message = message.SerializeToString()
        return change


def _sequences_of(rollout: object) -> Sequence[Mapping[str, object]]:
    """Returns the sequences of a rollout, which may be a single one."""
    sequences = [rollout] if isinstance(rollout, Mapping) else rollout
    if not isinstance(sequences, Sequence) or not sequences:
        raise TypeError(
            "a rollout must be a dict of columns or a list of them, one for each sequence, got "
            f"{'none' if isinstance(sequences, Sequence) and not sequences else type_name(rollout)}"
        )
    for sequence in sequences:
        if not isinstance(sequence, Mapping):
            raise TypeError(f"a sequence must be a dict of columns, got {type_name(sequence)}")
        if not sequence:
            raise InvalidArgumentError("a sequence must have at least one column, got none")
    return sequences


def _versions(version: object) -> dict[str, int]:
    """Returns the versions of a rollout, of a number, or of the oldest and the newest one."""
    if version is None:
        return {}
    pair = version if isinstance(version, tuple) else (version, version)
    if len(pair) != 2:
        raise InvalidArgumentError(f"version must be a number or two, got {version!r}")
    oldest, newest = (check_int64("version", it) for it in pair)
    return {"oldest": oldest, "newest": newest}


def check_rollout(rollout: int | None, version: object) -> None:
    """Checks the number of a rollout and its versions.

    Raises:
      TypeError: If one of them is no integer.
    """
    if rollout is not None:
        check_integer("rollout", rollout)
    _versions(version)


def opening(
    columns: Columns,
    data: Mapping[str, object],
    rollouts: Sequence[object] | None,
    name: str | None,
    after: str | None,
    priority: float,
    version: object,
    limit_ms: int | None,
) -> Changes:
    """Returns the insert of an item, which may wait that long."""
    if not isinstance(data, Mapping):
        raise TypeError(f"data must be a dict of columns, got {type_name(data)}")
    for argument, value in {"name": name, "after": after}.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{argument} must be a str or None, got {type_name(value)}")
    if name is None:
        name = np.random.default_rng().bytes(12).hex()
    parts = Parts(columns)
    parts.add_item(data)
    if missing := sorted(columns.of_items - data.keys()):
        raise InvalidArgumentError(
            f"The item lacks {', '.join(missing)}, a column of each item of table {columns.table}."
        )
    message = protos.ItemChange()
    message.opens.name = name
    if after is not None:
        message.opens.after = after
    for number, rollout in enumerate(rollouts or ()):
        for at, sequence in enumerate(_sequences_of(rollout)):
            parts.add_sequence(number, at, sequence)
        message.rollouts.add(number=number, **_versions(version))
    change = parts.into(Change(None, float(priority)), message)
    return Changes(columns.table, [change], None if limit_ms is None else limit_ms / 1000)


def was_inserted(refused: Sequence[bytes], table: str, after: str | None) -> bool:
    """Returns whether an item was inserted.

    Raises:
      FailedPreconditionError: If the newest item is another one than `after`.
    """
    if not refused:
        return True
    why = protos.InsertStreamResponse.Refused.FromString(refused[0])
    if not why.HasField("newest"):
        return False
    newest = why.newest
    raise FailedPreconditionError(
        f"The newest item of table {table} is {newest or '(none)'}, not {after or '(none)'}: the "
        "server has gone back to a checkpoint, the table was reset, or another program inserts "
        "into it, too. "
        f"Continue after {newest or 'none'}."
    )


@dataclasses.dataclass
class OpenItem:
    """An open item that this client holds, from `open_item`.

    Example:
      >>> with client.open_item("rollouts") as item:
      ...     print(item.data["prompt"], item.missing)
      ...     client.add_rollout(item, {"tokens": [3, 4], "score": 1.0})
      [1 2] [0, 1]
      True

    Attributes:
      name: Its name.
      key: Its key in the table.
      data: The columns that it has once, by name.
      version: Version of the table when it was taken.
      missing: Numbers of the rollouts that are neither final nor failed. `add_rollout` takes the
        first one unless it is given a number.
      partial: Sequences of the rollouts that are not final, by number: a list of dicts of columns.
      attempts: How often it was lost, or became stale, before.
    """

    name: str
    key: int
    data: dict[str, np.ndarray]
    version: int
    missing: list[int]
    partial: dict[int, list[dict[str, np.ndarray]]]
    attempts: int
    _columns: Columns = dataclasses.field(repr=False)
    _lease: tuple[int, int] = dataclasses.field(repr=False)

    @property
    def table(self) -> str:
        """Name of its table."""
        return self._columns.table

    @contextlib.contextmanager
    def _making(self, rollout: int | None, partial: bool) -> Iterator[int]:
        """Yields the number of a rollout, which is not missing from then on, unless that fails."""
        number = self._number(rollout)
        is_missing = number in self.missing and not partial
        if is_missing:
            self.missing.remove(number)
        try:
            yield number
        except BaseException:
            if is_missing:
                bisect.insort(self.missing, number)
            raise

    def _growth(self, sequences: object, number: int, version: object, partial: bool) -> Changes:
        """Returns the insert of a rollout."""
        parts = Parts(self._columns)
        for at, sequence in enumerate(_sequences_of(sequences)):
            parts.add_sequence(number, at, sequence)
        message = protos.ItemChange(lease=self._lease_message())
        versions = _versions(self.version if version is None else version)
        message.rollouts.add(number=number, is_partial=check_bool("partial", partial), **versions)
        return Changes(self.table, [parts.into(Change(self.key, 1.0), message)])

    def _failure(self, number: int, reason: str) -> dict[str, object]:
        """Returns the fields of a call that says that a rollout will not be made."""
        if not isinstance(reason, str):
            raise TypeError(f"reason must be a str, got {type_name(reason)}")
        failed = protos.Rollout(number=number, failed=reason)
        lease = self._lease_message()
        return {"table": self.table, "key": self.key, "lease": lease, "rollout": failed}

    def _lease_message(self) -> object:
        """Returns its lease as a message."""
        return protos.Lease(holder=self._lease[0], number=self._lease[1])

    def _number(self, rollout: int | None) -> int:
        if rollout is None:
            if not self.missing:
                raise InvalidArgumentError(f"item {self.name} lacks no rollout")
            return self.missing[0]
        number = check_integer("rollout", rollout)
        most = self._columns.info.settings.num_rollouts
        if not 0 <= number < most:
            raise InvalidArgumentError(
                f"rollout must be at least 0 and below num_rollouts ({most}), got {number}"
            )
        return number


def take_request(
    columns: Columns,
    takes: str,
    num_items: int,
    lacks: str | None,
    partial: bool,
    limit_ms: int | None,
) -> bytes:
    """Returns the serialized request of a take, which may wait that long, without its lease."""
    is_partial = check_bool("partial", partial)
    request = protos.TakeRequest(table=columns.table, num_items=num_items, is_partial=is_partial)
    if lacks is not None:
        columns.check_of_sequences(lacks)
        takes, request.column = "lacking", columns.position(lacks)
    request.takes = _TAKES[takes]
    if limit_ms is not None:
        request.timeout_ms = limit_ms
    return request.SerializeToString()


class Taken:
    """Items that a client takes, and the requests for their columns.

    It has its lease before the call, so that the items are given back whenever that ends.

    Attributes:
      columns: The columns of the table.
      lease: Holder and number of the lease.
      items: The items, as messages `TakenItem`; none before `read`.
      version: Version of the table.
    """

    def __init__(self, columns: Columns, lease: tuple[int, int]) -> None:
        self.columns = columns
        self.lease = lease
        self.items: list[Any] = []
        self.version = 0

    def read(self, answer: bytes) -> None:
        """Reads what the server has answered."""
        response = protos.TakeResponse.FromString(answer)
        self.items = list(response.items)
        self.version = response.version

    @contextlib.contextmanager
    def kept(self, client: native.Client) -> Iterator[None]:
        """Gives the items up if the block fails."""
        try:
            yield
        except BaseException as error:
            # A call that fails with one of these has taken nothing.
            if self.items or not isinstance(error, ReverbError):
                self.give_up(client)
            raise

    def give_up(self, client: native.Client) -> None:
        """Lets the core give the items back some time; a client that is closed has none."""
        with contextlib.suppress(ReverbError):
            client.give_up_lease(self.columns.table, self.lease[1])

    def check_open(self) -> None:
        """Raises DeadlineExceededError if there is no item."""
        if not self.items:
            raise DeadlineExceededError(f"Table {self.columns.table} has no open item.")

    def open_item(self, fetched: ReplayBatch) -> OpenItem | None:
        """Returns the only item, whose columns were fetched, each for itself.

        `None` if it has others by now, because it became stale after it was taken.
        """
        (item,) = self.items
        if len(fetched.data) != len(item.parts):
            return None
        names = self.columns.names
        data: dict[str, np.ndarray] = {}
        partial: dict[int, list[dict[str, np.ndarray]]] = {}
        finals = {it.number for it in item.rollouts if not it.is_partial}
        for part, column in zip(item.parts, fetched.data, strict=True):
            name = names[part.column]
            value = _first(column)
            if not part.HasField("rollout"):
                data[name] = value
            elif part.rollout not in finals:
                sequences = partial.setdefault(part.rollout, [])
                while len(sequences) <= part.sequence:
                    sequences.append({})
                sequences[part.sequence][name] = value
        num_rollouts = self.columns.info.settings.num_rollouts
        missing = [number for number in range(num_rollouts) if number not in finals]
        return OpenItem(
            name=item.name,
            key=item.key,
            data=data,
            version=self.version,
            missing=missing,
            partial=partial,
            attempts=item.attempts,
            _columns=self.columns,
            _lease=self.lease,
        )


def fetch_request(table: str, num_keys: int, indices: list[int] | None) -> BatchRequest:
    """Returns the request of a fetch: columns packed, those at these positions of the items."""
    count = max(num_keys, 1)
    packed = BatchRequest(
        table, count, None, False, "packed", 0, None, None, False, False, None, None
    )
    if indices is not None:
        packed.limit_to_columns(indices)
    return packed


def all_of(table: str, keys: np.ndarray, fetched: ReplayBatch) -> ReplayBatch:
    """Returns what was fetched, if all items are there.

    Raises:
      DataLossError: If one has left.
    """
    gone = np.setdiff1d(keys, fetched.info.key)
    if len(gone):
        raise DataLossError(
            f"{len(gone)} of {len(keys)} items have left table {table} (deleted, or reset): keys "
            f"{', '.join(map(str, gone[:3]))}{', ...' if len(gone) > 3 else ''}."
        )
    return fetched


def _first(column: object) -> np.ndarray:
    """Returns a packed column of the only item."""
    values = getattr(column, "values", None)
    return np.asarray(column)[0] if values is None else np.asarray(values)


def settle_fields(
    table: str, lease: tuple[int, int], keys: Sequence[int] | None, ack: bool
) -> dict[str, object]:
    """Returns the fields of a call that ends the hold on items; `None`: all of the lease."""
    message = protos.Lease(holder=lease[0], number=lease[1])
    fields: dict[str, object] = {"table": table, "lease": message, "ack": ack}
    if keys is None:
        return fields | {"all": True}
    return fields | {"keys": [int(key) for key in keys]}


def held_by_others(answer: bytes) -> np.ndarray:
    """Returns the keys of an answer to a settled lease, uint64 `[M]`."""
    return np.array(answer_of("Settle", answer).held_by_others, np.uint64)


# Their public import path.
OpenItem.__module__ = "reverb"
