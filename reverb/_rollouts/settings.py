# SPDX-License-Identifier: Apache-2.0
"""Tables whose items have rollouts: their settings, and their state at one moment."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from reverb._checks.arguments import check_at_least, check_integer, check_number
from reverb.core import protos
from reverb.errors import InvalidArgumentError
from reverb.shown_text import type_name

__all__ = ["Rollouts", "RolloutsInfo", "column_names"]

# In the order of their numbers in messages.
_ON_STALE = ("again", "keep", "wait")
# Limit of numbers, and of seconds.
_LIMIT = 2**32
# Numbers that may be absent.
_OPTIONAL = ("ahead", "items_per_version", "max_staleness")


def column_names(signature: object) -> list[str]:
    """Returns the names of the columns of a signature, in the order of items.

    Raises:
      InvalidArgumentError: If it is no dict from names to specs.
    """
    if not isinstance(signature, Mapping) or not all(isinstance(it, str) for it in signature):
        raise InvalidArgumentError(
            "a table with rollouts needs a signature: a dict of names and specs of all columns, "
            f"got {type_name(signature)}"
        )
    return sorted(signature)


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """Settings of a table whose items grow: a prompt, and several tries at it.

    An item has columns that it has once, the prompt, and rollouts, each of one or more sequences,
    which have the other columns. It is open until enough rollouts are final or have failed, settled
    while columns are missing, and then ready: learners take it.

    Example:
      >>> rollouts = reverb.Rollouts(8, item=("prompt",), items_per_version=64, max_staleness=2)

    Attributes:
      num_rollouts: Rollouts of an item, from 1 to 1,024.
      item: Names of the columns that an item has once. The others are those of sequences,
        `[T, ...]` or a single step.
      min_rollouts: With how many final rollouts an item may be trained on when the others have
        failed; with fewer it leaves. `None`: all.
      ahead: Batches that generators may be ahead of the learner, 0 or more. `None`:
        `max_staleness`.
      items_per_version: Items that the learner takes for each version of the policy. With it, at
        most `(ahead + 1) * items_per_version` items are there, or taken for the present version;
        more inserts wait. `None`: no such limit.
      max_staleness: By how many versions the oldest tokens of an item may be behind the version of
        the table. `None`: any number.
      on_stale: What happens to an item that is staler. `"again"`: it is a bare prompt again.
        `"keep"`: nothing. `"wait"`: none becomes staler, and no work is lost: a `take` waits while
        it would leave old items that are not ready yet, and too many of them to be taken in time.
        It needs `items_per_version`, which must be what the learner takes for each version,
        `open_timeout_s`, the sampler `Fifo` and `max_times_sampled=1`. If the version makes a leap
        all the same, such as after a restart, what is too stale is made again.
      open_timeout_s: How long one client may hold an open item, in seconds; with
        `on_stale="wait"` also a settled one. `None`: any time.
      max_attempts: How many clients may lose an item, or how often it may become stale, before it
        leaves.
    """

    num_rollouts: int
    _: dataclasses.KW_ONLY
    item: Sequence[str]
    min_rollouts: int | None = None
    ahead: int | None = None
    items_per_version: int | None = None
    max_staleness: int | None = None
    on_stale: Literal["again", "keep", "wait"] = "again"
    open_timeout_s: float | None = None
    max_attempts: int = 5

    def __post_init__(self) -> None:
        if isinstance(self.item, str):
            raise TypeError(f"item must be a sequence of names, got {self.item!r}")
        object.__setattr__(self, "item", tuple(self.item))
        if len(set(self.item)) < len(self.item):
            raise InvalidArgumentError(f"item must name each column once, got {self.item!r}")
        check_at_least(1, "num_rollouts", self.num_rollouts)
        check_at_least(1, "max_attempts", self.max_attempts)
        for name in ("min_rollouts", *_OPTIONAL):
            value = getattr(self, name)
            if value is not None and not 0 <= check_integer(name, value) < _LIMIT:
                raise InvalidArgumentError(
                    f"{name} must be at least 0 and below {_LIMIT}, got {value}"
                )
        if self.on_stale not in _ON_STALE:
            raise InvalidArgumentError(
                f'on_stale must be "again", "keep" or "wait", got {self.on_stale!r}'
            )
        limit_s = self.open_timeout_s
        if limit_s is not None and not 0.001 <= check_number("open_timeout_s", limit_s) < _LIMIT:
            raise InvalidArgumentError(
                f"open_timeout_s must be at least 0.001 and below {_LIMIT}, got {limit_s}"
            )

    def to_proto(self, signature: object) -> object:
        """Returns the settings of a table with this signature as a message.

        Raises:
          InvalidArgumentError: If the signature lacks a column of `item`.
        """
        names = column_names(signature)
        for name in self.item:
            if name not in names:
                raise InvalidArgumentError(
                    f"item has column {name}, which the signature does not have; its columns are "
                    f"{', '.join(names)}"
                )
        columns = sorted(names.index(name) for name in self.item)
        settings = self._settings(num_columns=len(names), item_columns=columns)
        return protos.RolloutsInfo(settings=settings)

    def to_change(self) -> object:
        """Returns the settings as a change of a table that runs, which knows its columns."""
        return protos.RolloutsChange(settings=self._settings(), item=self.item)

    def _settings(self, **columns: object) -> object:
        """Returns the settings as a message, with these fields for columns."""
        min_rollouts = self.num_rollouts if self.min_rollouts is None else self.min_rollouts
        settings = protos.RolloutSettings(
            num_rollouts=self.num_rollouts,
            min_rollouts=min_rollouts,
            on_stale=_ON_STALE.index(self.on_stale),
            open_timeout_ms=round(1000 * (self.open_timeout_s or 0)),
            max_attempts=self.max_attempts,
            **columns,
        )
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None:
                setattr(settings, name, value)
        return settings

    @classmethod
    def from_proto(cls, settings: Any, signature: object) -> "Rollouts":
        """Reads the settings of a table with this signature. 0 is the default, as in a config."""
        names = column_names(signature)
        given = {name: getattr(settings, name) for name in _OPTIONAL if settings.HasField(name)}
        for at in settings.item_columns:
            if at >= len(names):
                raise InvalidArgumentError(
                    f"item_columns must be places among the {len(names)} columns, got {at}"
                )
        return cls(
            settings.num_rollouts,
            item=tuple(names[at] for at in settings.item_columns),
            min_rollouts=settings.min_rollouts or None,
            on_stale=_ON_STALE[settings.on_stale],
            open_timeout_s=settings.open_timeout_ms / 1000 or None,
            max_attempts=settings.max_attempts or cls.max_attempts,
            **given,
        )


@dataclasses.dataclass(frozen=True)
class RolloutsInfo:
    """A table with rollouts at one moment.

    Example:
      >>> rollouts = client.server_info()["rollouts"].rollouts
      >>> print(rollouts.version, rollouts.settings.num_rollouts)
      0 2

    Attributes:
      settings: Its `Rollouts`.
      version: Version of the policy, set by `set_version`.
      newest: Name of the item that was inserted last, also if it has left; `""`: none.
      taken: Items taken since the version was set.
      backlog: Items that count for the backlog: those that are there and not taken, and `taken`.
      open: Items that lack rollouts.
      settled: Items that lack columns.
      ready: Items that learners can have, or have.
      leased: Those of all these that clients hold.
      left: Numbers of items that left since the table was first made, also before a restart from a
        checkpoint, by the reason, as `RemovedItems` names them; reasons without any are left out.
        The items inserted so far are those that are present and these.
    """

    settings: Rollouts
    version: int
    newest: str
    taken: int
    backlog: int
    open: int
    settled: int
    ready: int
    leased: int
    left: Mapping[str, int]


for _cls in (Rollouts, RolloutsInfo):
    _cls.__module__ = "reverb"
