# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of programs that use this package: a server in a `with` block."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from reverb import item_selectors, rate_limiters
from reverb._checks.arguments import check_integer, check_timeout_ms
from reverb.client import Client
from reverb.errors import DeadlineExceededError
from reverb.server import Server, Table

__all__ = ["server", "table", "wait_for_items"]

# Long enough for a busy machine, short enough for a failing test.
DEFAULT_TIMEOUT_S = 10.0

_POLL_INTERVAL_S = 0.01


@contextlib.contextmanager
def server(
    tables: Sequence[Table] | None = None, *, connect_timeout_s: float = DEFAULT_TIMEOUT_S
) -> Iterator[Client]:
    """Runs a server on a free port of this machine, and stops it at the end.

    Example:
      >>> with reverb.testing.server([reverb.testing.table("replay")]) as client:
      ...     client.insert([1.0], {"replay": 1.0})

    Args:
      tables: The tables; `None`: one named `table`.
      connect_timeout_s: How long the client waits for the server, in seconds.

    Yields:
      A client of the server.
    """
    with Server([table()] if tables is None else tables, host="127.0.0.1") as running:
        yield Client(f"127.0.0.1:{running.port}", connect_timeout_s=connect_timeout_s)


def table(name: str = "table", **options: Any) -> Table:
    """Makes a table with defaults for tests; it is sampled in the order of insertion.

    Args:
      name: Name of the table.
      **options: Arguments of `Table` that replace the defaults: sampler and remover `Fifo`,
        `max_size` 1000, rate limiter `MinSize(1)`.
    """
    defaults = {
        "sampler": item_selectors.Fifo(),
        "remover": item_selectors.Fifo(),
        "max_size": 1000,
        "rate_limiter": rate_limiters.MinSize(1),
    }
    return Table(name, **(defaults | options))


def wait_for_items(
    client: Client,
    table: str,
    num_items: int,
    *,
    timeout_ms: int | None = int(1_000 * DEFAULT_TIMEOUT_S),
) -> None:
    """Blocks until a table has at least `num_items` items; for writers that do not flush.

    Args:
      client: Client of the server.
      table: Name of the table.
      num_items: Number of items.
      timeout_ms: How long to wait, in milliseconds; `None`: no limit; 0: do not wait.

    Raises:
      DeadlineExceededError: After `timeout_ms`.
    """
    limit = check_timeout_ms(timeout_ms)
    num_items = check_integer("num_items", num_items)
    deadline = time.monotonic() + (math.inf if limit is None else limit / 1_000)
    while (size := client.server_info()[table].current_size) < num_items:
        if time.monotonic() >= deadline:
            raise DeadlineExceededError(
                f"table {table} should hold {num_items} items after {limit} ms, it holds {size}"
            )
        time.sleep(_POLL_INTERVAL_S)
