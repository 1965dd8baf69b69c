# SPDX-License-Identifier: Apache-2.0
"""`reverb why`: what each table does or waits for, with an exit code for scripts."""

import dataclasses
import json
import time
from collections.abc import Mapping
from typing import Any

from reverb.client import Client
from reverb.errors import TableNotFoundError, UnimplementedError
from reverb.server_status import STATES, ServerStatus, TableStatus

# Exit codes, beside 0 and 1 for errors.
SOMEBODY_WAITS = 3
NEVER = 4

# A server counts rates from the first time that somebody asks.
_TIME_FOR_RATES_S = 1.1

# States that do not end by themselves.
_HOPELESS = ("never", "stuck")


@dataclasses.dataclass(frozen=True)
class Report:
    """What a server says of its tables.

    Attributes:
      tables: The tables that were asked for, those that need help first.
      address: Address of the server.
    """

    tables: Mapping[str, TableStatus]
    address: str

    def exit_code(self, longer_than_s: float) -> int:
        """Returns 4 for a table that can never go on, 3 if somebody waits for long, and else 0."""
        if any(table.diagnosis.state in _HOPELESS for table in self.tables.values()):
            return NEVER
        waits = [
            side.oldest_wait_s or 0.0
            for table in self.tables.values()
            for side in (table.inserting, table.sampling)
        ]
        return SOMEBODY_WAITS if max(waits, default=0.0) > longer_than_s else 0

    def as_text(self) -> str:
        """One line for each table: name, state and sentence."""
        if not self.tables:
            return f"{self.address} has no tables"
        name_width = max(len(name) for name in self.tables)
        state_width = max(len(table.diagnosis.state) for table in self.tables.values())
        return "\n".join(
            f"{name:{name_width}}  {table.diagnosis.state:{state_width}}  "
            f"{table.diagnosis.sentence}"
            for name, table in self.tables.items()
        )

    def as_json(self) -> str:
        """The same for programs: a dict of tables."""
        tables = {
            name: {
                "state": table.diagnosis.state,
                "sentence": table.diagnosis.sentence,
                "inserts_wait_s": table.inserting.oldest_wait_s,
                "samples_wait_s": table.sampling.oldest_wait_s,
                "rates": None if table.rates is None else dataclasses.asdict(table.rates),
            }
            for name, table in self.tables.items()
        }
        return json.dumps({"server": self.address, "tables": tables}, indent=2)


def ask(address: str, table: str | None, timeout_s: float) -> Report:
    """Asks a server. Takes a second if nobody has asked it before, so that it knows its rates.

    Args:
      address: Address of the server.
      table: Only this table; `None`: all.
      timeout_s: How long to wait for the server, in seconds.

    Raises:
      TableNotFoundError: If there is no such table.
      UnimplementedError: If it is a dm-reverb server; the text has what that tells.
      UnavailableError: If no server answers in time.
    """
    client = Client(address, connect_timeout_s=timeout_s)
    try:
        status = client.status()
        if _lacks_rates(status):
            time.sleep(_TIME_FOR_RATES_S)
            status = client.status()
    except UnimplementedError:
        raise UnimplementedError(_of_dm_reverb(client, address)) from None
    if table is not None and table not in status.tables:
        known = ", ".join(sorted(status.tables))
        raise TableNotFoundError(f"{address} has no table {table}; it has: {known}")
    tables = {table: status.tables[table]} if table is not None else status.tables
    worst_first = sorted(tables.items(), key=lambda it: STATES.index(it[1].diagnosis.state))
    return Report(dict(worst_first), address)


def _lacks_rates(status: ServerStatus) -> bool:
    return any(table.rates is None for table in status.tables.values())


def _of_dm_reverb(client: Client, address: str) -> str:
    tables = []
    for name, info in client.server_info().items():
        limiter: Any = info.rate_limiter_info
        inserts, samples = limiter.insert_stats.completed, limiter.sample_stats.completed
        cursor = inserts * limiter.samples_per_insert - samples
        tables.append(
            f"{name} has {info.current_size} items (min_size_to_sample "
            f"{limiter.min_size_to_sample}), inserts * samples_per_insert - samples is "
            f"{cursor:g} (from {limiter.min_diff:g} to {limiter.max_diff:g})"
        )
    return (
        f"{address} is a server of dm-reverb or of an older release, which does not tell who "
        f"waits. All that it tells: {'; '.join(tables)}"
    )
