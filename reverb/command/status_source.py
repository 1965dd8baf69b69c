# SPDX-License-Identifier: Apache-2.0
"""A running server whose status the commands `why` and `top` show."""

import dataclasses
import inspect
import time
from collections.abc import Callable
from typing import Any

from google.protobuf import json_format

from reverb.client import Client
from reverb.command import text
from reverb.command.server_arguments import new_client
from reverb.core import protos
from reverb.errors import TableNotFoundError, UnimplementedError
from reverb.server_status import STATES, ServerStatus, TableStatus

# Exit code of commands without a server or a shard that is down, besides what the others said.
SERVER_DOWN = 5

# A server starts to count rates at the first query.
_TIME_FOR_RATES_S = 1.1

# The name of this option in newer and in older releases of protobuf.
_EVERY_FIELD = (
    "always_print_fields_with_no_presence"
    if "always_print_fields_with_no_presence"
    in inspect.signature(json_format.MessageToJson).parameters
    else "including_default_value_fields"
)


class StatusSource:
    """A running server, or one of its tables. Calls block until the server answers.

    `table` is `None` for all tables; `credentials` are arguments of `Client`.

    Attributes:
      is_partial: Whether a shard of the group was missing in the last answer.
    """

    is_partial = False

    def __init__(
        self, address: str, table: str | None, timeout_s: float, **credentials: object
    ) -> None:
        self.address = address
        self.table = table
        self._client = new_client(address, timeout_s, **credentials)

    def ask(self, *, with_streams: bool = False) -> ServerStatus:
        """Asks for the status, on request with open streams.

        Raises:
          TableNotFoundError: If there is no such table.
          UnimplementedError: If it is a dm-reverb server; the text has the facts that it reports.
          UnavailableError: If no server answers in time.
        """
        return self._selected(self._status(with_streams))

    def ask_for_rates(self, *, with_streams: bool = False) -> ServerStatus:
        """Like `ask`, but waits a second after the first query, so that there are rates."""
        status = self._selected(self._status(with_streams))
        if any(table.rates is None for table in status.tables.values()):
            time.sleep(_TIME_FOR_RATES_S)
            status = self._selected(self._status(with_streams))
        return status

    def ask_for_json(self) -> str:
        """Like `ask_for_rates`, with streams, as JSON of the message `StatusResponse`.

        Equal to `/api/status` of the server's page. With a table, others are left out.
        """
        self.ask_for_rates()
        message = protos.StatusResponse.FromString(self._serialized(with_streams=True))
        if self.table is not None:
            _keep(message.tables, lambda table: table.name == self.table)
            _keep(message.streams, lambda stream: stream.table == self.table)
        options: dict[str, Any] = {_EVERY_FIELD: True}
        return json_format.MessageToJson(message, indent=2, **options)

    def _status(self, with_streams: bool) -> ServerStatus:
        status = ServerStatus.from_serialized_proto(self._serialized(with_streams))
        self.is_partial = any(shard.status is None for shard in status.shards)
        return status

    def _serialized(self, with_streams: bool) -> bytes:
        try:
            return self._client._serialized_status(with_streams)
        except UnimplementedError:
            raise UnimplementedError(_of_dm_reverb(self._client, self.address)) from None

    def _selected(self, status: ServerStatus) -> ServerStatus:
        if self.table is None:
            return status
        if self.table not in status.tables:
            known = ", ".join(sorted(status.tables))
            raise TableNotFoundError(f"{self.address} has no table {self.table}; it has: {known}")
        return dataclasses.replace(
            status,
            tables={self.table: status.tables[self.table]},
            streams=tuple(it for it in status.streams if it.table == self.table),
        )


def worst_first(status: ServerStatus) -> dict[str, TableStatus]:
    """Returns the tables, the most serious state first."""
    rank = {state: i for i, state in enumerate(STATES)}
    return dict(sorted(status.tables.items(), key=lambda it: rank[it[1].diagnosis.state]))


def _keep(messages: Any, condition: Callable[[Any], bool]) -> None:
    kept = [message for message in messages if condition(message)]
    del messages[:]
    messages.extend(kept)


def _of_dm_reverb(client: Client, address: str) -> str:
    tables = []
    for name, info in client.server_info().items():
        limiter: Any = info.rate_limiter_info
        inserts, samples = limiter.insert_stats.completed, limiter.sample_stats.completed
        cursor = inserts * limiter.samples_per_insert - samples
        tables.append(
            f"{text.plain(name)} has {info.current_size} items (min_size_to_sample "
            f"{limiter.min_size_to_sample}), inserts * samples_per_insert - samples is "
            f"{cursor:g} (from {limiter.min_diff:g} to {limiter.max_diff:g})"
        )
    return (
        f"{address} is a server of dm-reverb or of an older release, which does not report "
        f"waiting calls. Its tables: {'; '.join(tables)}"
    )
