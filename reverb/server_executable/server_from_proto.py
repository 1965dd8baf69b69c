# SPDX-License-Identifier: Apache-2.0
"""Makes tables, selectors and rate limiters from the messages that describe them."""

from collections.abc import Iterable
from typing import Any

from reverb import item_selectors, rate_limiters
from reverb._nests import structured_value
from reverb._server.table import Table, arguments_of
from reverb.core import native
from reverb.reverb_types import SpecNest

__all__ = [
    "rate_limiter_from_proto",
    "selector_from_proto",
    "signature_from_proto",
    "tables_from_proto",
]


def selector_from_proto(s: object) -> native.ItemSelector:
    """Makes a selector.

    Args:
      s: A `KeyDistributionOptions` message.

    Raises:
      UnimplementedError: If the message names no selector.
      InvalidArgumentError: If it is `false` where only `true` has a meaning, or if the priority
        exponent is not finite.
    """
    return item_selectors.from_options(s)


def rate_limiter_from_proto(proto: object) -> rate_limiters.RateLimiter:
    """Makes a rate limiter.

    Args:
      proto: A `RateLimiterCheckpoint` message. Its counters are ignored.

    Raises:
      InvalidArgumentError: If a number is out of its range.
    """
    return rate_limiters.from_proto(proto)


def tables_from_proto(configs: Iterable[Any]) -> list[Table]:
    """Makes empty tables.

    Args:
      configs: `PriorityTableCheckpoint` messages. Counters and items are ignored.

    Raises:
      UnimplementedError: If a table has no sampler or no remover.
      InvalidArgumentError: If a value is out of its range or missing.
    """
    return [
        Table(**arguments_of(config), signature=signature_from_proto(config.signature))
        for config in configs
    ]


def signature_from_proto(proto: object) -> SpecNest | None:
    """Makes the signature of a table.

    Args:
      proto: A `StructuredValue` message; an empty one is no signature.

    Raises:
      DataLossError: If it is no nest of specs.
    """
    return structured_value.decode(proto)
