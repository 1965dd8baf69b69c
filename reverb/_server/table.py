# SPDX-License-Identifier: Apache-2.0
"""Tables: items with selectors, a rate limiter and a signature."""

import abc
from collections.abc import Sequence
from typing import Any, Literal

import tree
from google.protobuf.message import Message

from reverb import item_selectors, rate_limiters
from reverb._checks.arguments import check_integer, check_table
from reverb._checks.byte_sizes import parse_byte_size
from reverb._checks.pickles import not_pickled
from reverb._nests import structured_value
from reverb._rollouts.settings import Rollouts
from reverb.core import native, protos
from reverb.errors import InvalidArgumentError, UnimplementedError
from reverb.reverb_types import SpecNest, TableInfo
from reverb.shown_text import shown, type_name

__all__ = ["Table", "TableExtensionBase", "arguments_of"]

# The protocol has 32 bits for the number of samples of an item.
_INT32_LIMIT = 2**31


class TableExtensionBase(abc.ABC):
    """The base of table extensions, which observe a table. No extension exists yet."""

    @abc.abstractmethod
    def build_internal_extensions(self, table_name: str) -> Sequence[Any]:
        """Makes the native extensions to register with the table."""


class Table:
    """A bounded collection of prioritized items with a sampler, a remover and a rate limiter.

    Every table needs selectors and a rate limiter of its own.

    Example:
      >>> table = Table(
      ...     name="replay",
      ...     sampler=reverb.selectors.Prioritized(0.8),
      ...     remover=reverb.selectors.Fifo(),
      ...     max_size=1_000_000,
      ...     rate_limiter=reverb.rate_limiters.MinSize(1_000),
      ... )
    """

    def __init__(
        self,
        name: str,
        sampler: native.ItemSelector,
        remover: native.ItemSelector,
        max_size: int,
        rate_limiter: rate_limiters.RateLimiter,
        max_times_sampled: int = 0,
        extensions: Sequence[TableExtensionBase] = (),
        signature: SpecNest | None = None,
        *,
        seed: int | None = None,
        max_bytes: int | str | None = None,
        when_full: str = "remove",
        max_priority: Literal["present", "ever"] = "present",
        rollouts: Rollouts | None = None,
    ) -> None:
        """Makes an empty table, which is not served yet.

        Args:
          name: Name of the table, unique in its server.
          sampler: Selector of the items to sample.
          remover: Selector of the item to evict when the table is full.
          max_size: Maximum number of items.
          rate_limiter: Delays samples and inserts.
          max_times_sampled: An item is removed after it was sampled this often; below 1: never.
          extensions: Observers of the table; none is available yet.
          signature: Nest of specs of the items' columns `[T, ...]`: any objects with a `shape` and
            a `dtype`. Clients compare items with it before they send them.
          seed: Makes the random choices of this table reproducible.
          max_bytes: Maximum memory of its items, beside `max_size`: bytes, or a size such as
            "12GiB" or "500MB". `None`: no limit. Each chunk counts once, with its size in memory;
            an item counts some 100 bytes. `server.status()` shows the memory of a table.
          when_full: Behaviour when an item does not fit into `max_bytes`. "remove": the remover
            evicts items until it fits. "wait": the insert waits, as for the rate limiter, until
            items leave; for tables whose items must not be dropped unread.
          max_priority: Meaning of `reverb.MAX_PRIORITY`. "present": the largest priority of the
            items in the table; 1.0 without items. With a sampler other than `Prioritized`, or with
            exponent 0, items that have left since the table was empty count too. "ever": the
            largest one that any item had since the table was made or reset.
          rollouts: Makes it a table whose items grow; see `Rollouts`. It needs a signature that is
            a dict, the rate limiter `MinSize`, and selectors other than `Shuffle`, `Recent` and
            `Uniform(over="steps")`. `None`: items are whole when they are inserted.

        Raises:
          InvalidArgumentError: If an argument is out of its range, if `max_bytes` is not a size, if
            a selector or the rate limiter is already in use, or if the signature has a key that is
            not a string, a dtype that cannot be stored, or a leaf that is not a spec; the text
            names its path.
          TypeError: If an argument has the wrong type.
          UnimplementedError: If an extension builds a native extension.
        """
        check_table(name, "name")
        for argument, selector in {"sampler": sampler, "remover": remover}.items():
            if not isinstance(selector, native.ItemSelector):
                raise TypeError(
                    f"{argument} must be an object of reverb.selectors, such as "
                    f"reverb.selectors.Fifo(), got {type_name(selector)}"
                )
        if not hasattr(rate_limiter, "internal_limiter"):
            # The class is that of dm-reverb's error.
            raise AttributeError(
                "rate_limiter must be an object of reverb.rate_limiters, such as "
                f"reverb.rate_limiters.MinSize(1), got {type_name(rate_limiter)}, which has no "
                "internal_limiter"
            )
        max_size = check_integer("max_size", max_size, allows_bool=True)
        max_times_sampled = check_integer("max_times_sampled", max_times_sampled, allows_bool=True)
        if seed is not None:
            seed = check_integer("seed", seed)
        if not -_INT32_LIMIT <= max_times_sampled < _INT32_LIMIT:
            raise InvalidArgumentError(
                f"max_times_sampled must fit into 32 bits, got {max_times_sampled}"
            )
        internal_extensions = [
            internal
            for extension in extensions
            for internal in extension.build_internal_extensions(name)
        ]
        if internal_extensions:
            raise UnimplementedError(
                f"table extensions are not available, got {internal_extensions} for table {name}"
            )
        self._sampler = sampler
        self._remover = remover
        self._rate_limiter = rate_limiter
        self._extensions = extensions
        self._signature = signature
        self.internal_seed = seed
        self.internal_table = native.Table(
            name,
            sampler=sampler,
            remover=remover,
            max_size=max_size,
            max_times_sampled=max_times_sampled,
            rate_limiter=rate_limiter.internal_limiter,
            signature=_encode_signature(signature),
            seed=seed,
            options=_options(
                max_bytes=parse_byte_size("max_bytes", max_bytes),
                when_full=when_full,
                max_priority=max_priority,
                rollouts=None if rollouts is None else rollouts.to_proto(signature),
            ),
        )

    @classmethod
    def rollouts(
        cls,
        name: str,
        num_rollouts: int,
        signature: SpecNest,
        *,
        item: Sequence[str] = ("prompt",),
        max_items: int = 4096,
        max_bytes: int | str | None = None,
        **rollouts: Any,
    ) -> "Table":
        """Makes a table whose items grow: oldest first, each is trained on once.

        Args:
          name: Name of the table.
          num_rollouts: Rollouts of an item, as in `Rollouts`.
          signature: A dict of the specs of all columns, by name.
          item: Names of the columns that an item has once, as in `Rollouts`.
          max_items: Maximum number of items; more inserts wait.
          max_bytes: Maximum memory of its items; inserts wait from three quarters of it on.
          **rollouts: Other settings of `Rollouts`.

        Raises:
          InvalidArgumentError: If a setting is out of its range.
        """
        return cls(
            name=name,
            sampler=item_selectors.Fifo(),
            remover=item_selectors.Fifo(),
            max_size=check_integer("max_items", max_items),
            max_times_sampled=1,
            rate_limiter=rate_limiters.MinSize(1),
            signature=signature,
            max_bytes=max_bytes,
            when_full="wait",
            rollouts=Rollouts(num_rollouts, item=item, **rollouts),
        )

    @classmethod
    def queue(
        cls,
        name: str,
        max_size: int,
        extensions: Sequence[TableExtensionBase] = (),
        signature: SpecNest | None = None,
        *,
        max_bytes: int | str | None = None,
    ) -> "Table":
        """Makes a first-in, first-out queue: items are sampled once; inserts wait while full.

        It is full with `max_size` items, or with `max_bytes` of memory.
        """
        return cls(
            name=name,
            sampler=item_selectors.Fifo(),
            remover=item_selectors.Fifo(),
            max_size=max_size,
            max_times_sampled=1,
            rate_limiter=rate_limiters.Queue(max_size),
            extensions=extensions,
            signature=signature,
            max_bytes=max_bytes,
            when_full="wait",
        )

    @classmethod
    def stack(
        cls,
        name: str,
        max_size: int,
        extensions: Sequence[TableExtensionBase] = (),
        signature: SpecNest | None = None,
        *,
        max_bytes: int | str | None = None,
    ) -> "Table":
        """Makes a last-in, first-out stack: items are sampled once; inserts wait while full.

        It is full with `max_size` items, or with `max_bytes` of memory.
        """
        return cls(
            name=name,
            sampler=item_selectors.Lifo(),
            remover=item_selectors.Lifo(),
            max_size=max_size,
            max_times_sampled=1,
            rate_limiter=rate_limiters.Stack(max_size),
            extensions=extensions,
            signature=signature,
            max_bytes=max_bytes,
            when_full="wait",
        )

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.internal_table.name()

    @property
    def info(self) -> TableInfo:
        """Current settings and counters, read without a connection."""
        return TableInfo.from_serialized_proto(self.internal_table.info())

    @property
    def internal_settings(self) -> Any:
        """Its settings as a `PriorityTableCheckpoint` message, which has no items."""
        return protos.PriorityTableCheckpoint.FromString(self.internal_table.settings())

    def can_sample(self, num_samples: int) -> bool:
        """Whether the rate limiter would allow `num_samples` samples now.

        Args:
          num_samples: At least 1. `max_times_sampled` is not considered.

        Raises:
          InvalidArgumentError: If `num_samples` is below 1.
        """
        return self.internal_table.can_sample(num_samples)

    def can_insert(self, num_inserts: int) -> bool:
        """Whether the rate limiter would allow `num_inserts` inserts now.

        Args:
          num_inserts: At least 1. `max_size` is not considered.

        Raises:
          InvalidArgumentError: If `num_inserts` is below 1.
        """
        return self.internal_table.can_insert(num_inserts)

    def replace(
        self,
        name: str | None = None,
        sampler: native.ItemSelector | None = None,
        remover: native.ItemSelector | None = None,
        max_size: int | None = None,
        rate_limiter: rate_limiters.RateLimiter | None = None,
        max_times_sampled: int | None = None,
        extensions: Sequence[TableExtensionBase] | None = None,
        signature: SpecNest | None = None,
        *,
        seed: int | None = None,
        max_bytes: int | str | None = None,
        when_full: str | None = None,
        max_priority: Literal["present", "ever"] | None = None,
        rollouts: Rollouts | None = None,
    ) -> "Table":
        """Makes an empty table with other options; `None` copies the option of this table.

        An empty signature, such as `{}`, removes the signature.
        """
        given = {
            "name": name,
            "sampler": sampler,
            "remover": remover,
            "max_size": max_size,
            "rate_limiter": rate_limiter,
            "max_times_sampled": max_times_sampled,
            "extensions": extensions,
            "signature": signature,
            "seed": seed,
            "max_bytes": max_bytes,
            "when_full": when_full,
            "max_priority": max_priority,
            "rollouts": rollouts,
        }
        own = {
            "extensions": self._extensions,
            "signature": self._signature,
            "seed": self.internal_seed,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        return Table(**(arguments_of(self.internal_settings) | own | changed))

    __reduce__ = not_pickled(
        "it belongs to the process of its server; send a function that makes it, and call it "
        "there. `replace` makes another table like this one"
    )

    @shown
    def __repr__(self) -> str:
        return repr(self.internal_table)

    @shown
    def __str__(self) -> str:
        return str(self.info)


# Counters of a table, which are no options.
_COUNTED = ("largest_priority", "total_inserts", "total_samples")

# Options that dm-reverb's tables do not have.
_OPTIONS = [
    field
    for field in protos.PriorityTableCheckpoint.DESCRIPTOR.fields
    if field.number >= 1000 and field.name not in _COUNTED
]


def arguments_of(settings: Any) -> dict[str, Any]:
    """Returns the arguments of `Table` that a `PriorityTableCheckpoint` message describes.

    Its signature and counters are ignored.

    Raises:
      UnimplementedError: If a selector is missing.
      InvalidArgumentError: If a number of a selector or of the rate limiter is out of its range.
    """
    options = {field.name: _value(field, settings) for field in _OPTIONS}
    return options | {
        "name": settings.table_name,
        "sampler": item_selectors.from_options(settings.sampler),
        "remover": item_selectors.from_options(settings.remover),
        "max_size": settings.max_size,
        "max_times_sampled": settings.max_times_sampled,
        "rate_limiter": rate_limiters.from_proto(settings.rate_limiter),
    }


def _value(field: Any, settings: Any) -> object:
    """Reads an option: an enum as a word, and what is not set as `None`."""
    value = getattr(settings, field.name)
    if field.enum_type is not None:
        # A message of a newer release may have another number.
        found = field.enum_type.values_by_number.get(value, field.enum_type.values[0])
        return found.name.lower()
    is_set = settings.HasField(field.name) if field.has_presence else bool(value)
    if is_set and field.name == "rollouts":
        signature = structured_value.decode(settings.signature)
        return Rollouts.from_proto(value.settings, signature)
    return value if is_set else None


def _options(**values: object) -> bytes:
    """Makes the message of options. Words are names of enums; `None` is not set."""
    message = protos.PriorityTableCheckpoint()
    for field in _OPTIONS:
        value = values.pop(field.name)
        if field.enum_type is not None:
            words = [it.name.lower() for it in field.enum_type.values]
            if value not in words:
                known = " or ".join(f'"{word}"' for word in words)
                raise InvalidArgumentError(f'{field.name} must be {known}, got "{value}"')
            value = words.index(value)
        if isinstance(value, Message):
            getattr(message, field.name).CopyFrom(value)
        elif value is not None:
            setattr(message, field.name, value)
    return message.SerializeToString()


def _encode_signature(signature: SpecNest | None) -> bytes | None:
    if signature is None or (tree.is_nested(signature) and not signature):
        return None
    return structured_value.encode_signature(signature).SerializeToString()


# The public import path, as in dm-reverb.
Table.__module__ = TableExtensionBase.__module__ = "reverb.server"
