# SPDX-License-Identifier: Apache-2.0
"""Changes of a table's settings while its server runs."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message

from reverb._checks.answers import reads_answer
from reverb._checks.arguments import (
    check_at_least,
    check_integer,
    check_mapping,
    check_number,
    check_table,
)
from reverb._checks.byte_sizes import parse_byte_size
from reverb._rollouts.settings import Rollouts
from reverb.core import native, protos
from reverb.errors import InvalidArgumentError
from reverb.rate_limiters import RateLimiter

__all__ = ["UNCHANGED", "ChangedSetting", "TableChange"]


class Unchanged(enum.Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""Leaves a setting as it is where `None` means "no limit"."""


@dataclasses.dataclass(frozen=True)
class TableChange:
    """New values for some settings of a table; the others stay.

    Example:
      >>> TableChange(max_size=500, max_bytes="1GiB").max_size
      500

    Attributes:
      max_size: Maximum number of items, from 1 to `2**31 - 1`. If the table holds more, the remover
        evicts the rest before the call returns.
      max_bytes: Maximum number of bytes: a number, or a size such as "4GiB"; `None`: no limit. If
        the table holds more, items are evicted as for `max_size`, or inserts wait if its
        `when_full` is "wait".
      max_times_sampled: Number of samples after which an item is removed; 0: no limit. An item that
        was sampled that often before is removed by its next sample.
      rate_limiter: The new limiter. Another `samples_per_insert` applies from now on: earlier
        inserts and samples no longer count, except as far as the new bounds allow.
      priority_exponent: Exponent of a `Prioritized` sampler. All weights are computed again, which
        locks the table for some milliseconds for each million items.
      sampler: A selector of the same kind as the sampler, with other parameters:
        `Prioritized(priority_exponent, draw=...)` or `Recent(expected_age)`.
      rollouts: All settings of a table with rollouts; `num_rollouts` and `item` must be those that
        it has. Items that are staler than a new `max_staleness` allows become bare prompts.
    """

    max_size: int | None = None
    max_bytes: int | str | Unchanged | None = UNCHANGED
    max_times_sampled: int | None = None
    rate_limiter: RateLimiter | None = None
    priority_exponent: float | None = None
    sampler: Any = None
    rollouts: Rollouts | None = None

    def to_proto(self, table: str) -> Message:
        """Makes a `reverb.TableChange` message.

        Raises:
          InvalidArgumentError: If a value is out of its range.
          TypeError: If a value has another type.
        """
        check_table(table)
        change = protos.TableChange(table=table)
        if self.max_size is not None:
            change.max_size = _fitting("max_size", check_integer("max_size", self.max_size), 64)
        if self.max_bytes is not UNCHANGED:
            # In messages, 0 means no limit.
            change.max_bytes = parse_byte_size("max_bytes", self.max_bytes) or 0
        if self.max_times_sampled is not None:
            times = check_at_least(0, "max_times_sampled", self.max_times_sampled)
            change.max_times_sampled = _fitting("max_times_sampled", times, 32)
        if self.rate_limiter is not None:
            if not isinstance(self.rate_limiter, RateLimiter):
                raise TypeError(
                    f"rate_limiter must be one of reverb.rate_limiters, got {self.rate_limiter!r}"
                )
            change.rate_limiter.CopyFrom(self.rate_limiter.to_proto())
        if self.priority_exponent is not None:
            exponent = check_number("priority_exponent", self.priority_exponent)
            change.priority_exponent = exponent
        if self.sampler is not None:
            if not isinstance(self.sampler, native.ItemSelector):
                raise TypeError(f"sampler must be one of reverb.selectors, got {self.sampler!r}")
            change.sampler.ParseFromString(self.sampler.to_options())
        if self.rollouts is not None:
            if not isinstance(self.rollouts, Rollouts):
                raise TypeError(f"rollouts must be reverb.Rollouts, got {self.rollouts!r}")
            change.rollouts.CopyFrom(self.rollouts.to_change())
        return change


def _fitting(argument: str, value: int, bits: int) -> int:
    if value.bit_length() >= bits:
        raise InvalidArgumentError(f"{argument} must fit into {bits} bits, got {value}")
    return value


def to_request(changes: Mapping[str, TableChange], *, dry_run: bool = False) -> bytes:
    """Makes a serialized `reverb.ConfigureTablesRequest`.

    Raises:
      InvalidArgumentError: If a value is out of its range.
      TypeError: If a value has another type.
    """
    check_mapping("changes", changes, "tables to reverb.TableChange objects")
    for change in changes.values():
        if not isinstance(change, TableChange):
            raise TypeError(f"changes must hold reverb.TableChange objects, got {change!r}")
    messages = [change.to_proto(table) for table, change in changes.items()]
    return protos.ConfigureTablesRequest(changes=messages, dry_run=dry_run).SerializeToString()


@dataclasses.dataclass(frozen=True)
class ChangedSetting:
    """A setting of a table that has another value now.

    Attributes:
      table: Name of the table.
      setting: Name of the setting.
      before: Its old value, as text.
      after: Its new value, as text.
    """

    table: str
    setting: str
    before: str
    after: str

    @classmethod
    @reads_answer
    def all_of(cls, serialized: bytes) -> "list[ChangedSetting]":
        """Reads them from a serialized `reverb.ConfigureTablesResponse`."""
        answer = protos.ConfigureTablesResponse.FromString(serialized)
        return [cls(it.table, it.setting, it.before, it.after) for it in answer.changed]

    def __str__(self) -> str:
        return f"{self.setting} of table {self.table} is {self.after} now, not {self.before}"


# The public import path.
TableChange.__module__ = "reverb"
Unchanged.__module__ = ChangedSetting.__module__ = "reverb.client"
