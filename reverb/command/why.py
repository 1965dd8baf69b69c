# SPDX-License-Identifier: Apache-2.0
"""`reverb why`: the state of each table, with an exit code for scripts."""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from reverb.command import text
from reverb.command.addresses import servers_of
from reverb.command.server_arguments import Commands, add_address, add_timeout, credentials_of
from reverb.command.several import ask_each
from reverb.command.status_source import SERVER_DOWN, StatusSource, worst_first
from reverb.command.top import server_facts
from reverb.errors import ReverbError
from reverb.server_status import ServerStatus, TableStatus

# Exit codes, besides 0, 1 for errors and `SERVER_DOWN`.
SOMEBODY_WAITS = 3
NEVER = 4
SAVING_FAILS = 6

_LONG_WAIT_S = 30.0

# Longer names are cut; `--json` has the whole name.
_MAX_NAME_WIDTH = 60

# States that do not end by themselves.
_HOPELESS = ("never", "stuck")
_SHARD_DOWN = "shard down"


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "why",
        help="say why inserts and samples of a running server wait",
        description="Shows the state of each table of a running server, or of a group: why its "
        "inserts and samples wait, and what would help. The most serious states come first.",
        epilog="exit codes: 0 all is well, or waits are short; 3 an insert or sample waits for "
        "longer than --longer-than; 4 a table can never continue (stuck, never); 5 a shard of a "
        "group, or one of several servers, is down; 6 the last checkpoint failed, or the disk of a "
        "store fails; of several, the largest; 1 no answer of any server",
    )
    add_address(parser, shows_several=True)
    parser.add_argument("table", nargs="?", help="only this table")
    add_timeout(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--longer-than",
        type=float,
        default=_LONG_WAIT_S,
        metavar="SECONDS",
        help="a longer wait makes the exit code 3 (default: %(default)g)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    credentials = credentials_of(arguments)

    def ask(address: str) -> Report:
        # The first query of a server takes a second, so that there are rates.
        source = StatusSource(address, arguments.table, arguments.timeout, **credentials)
        return Report(address, source.ask_for_rates())

    addresses = servers_of(arguments.address)
    if len(addresses) == 1:
        report = ask(arguments.address)
        print(json.dumps(report.as_dict(), indent=2) if arguments.json else report.as_text())
        return report.exit_code(arguments.longer_than)
    answers = ask_each(addresses, ask)
    if arguments.json:
        values = [
            {"server": address, "error": str(it)} if isinstance(it, ReverbError) else it.as_dict()
            for address, it in answers.items()
        ]
        print(json.dumps({"servers": values}, indent=2))
    else:
        for address, it in answers.items():
            shown = f"no answer: {it}" if isinstance(it, ReverbError) else it.as_text()
            print(text.plain(address))
            print("\n".join(f"  {line}" for line in shown.splitlines()))
    codes = [
        SERVER_DOWN if isinstance(it, ReverbError) else it.exit_code(arguments.longer_than)
        for it in answers.values()
    ]
    return max(codes)


@dataclasses.dataclass(frozen=True)
class Report:
    """The states of a server's tables.

    Attributes:
      address: Address of the server.
      status: The status of the requested tables.
    """

    address: str
    status: ServerStatus

    @property
    def tables(self) -> Mapping[str, TableStatus]:
        """The requested tables, the most serious state first."""
        return worst_first(self.status)

    @property
    def failing(self) -> list[str]:
        """What fails to save: `checkpoint` if the last one failed, `store` while its disk does."""
        store = self.status.store
        checks = {
            "checkpoint": self.status.checkpoints.latest_error is not None,
            "store": store is not None and store.state == "failing",
        }
        return [name for name, fails in checks.items() if fails]

    def exit_code(self, longer_than_s: float) -> int:
        """Returns 6 if saving fails, 5 without a shard, 4 if a table is stuck, 3 if one waits."""
        if self.failing:
            return SAVING_FAILS
        if any(table.diagnosis.state == _SHARD_DOWN for table in self.tables.values()):
            return SERVER_DOWN
        if any(table.diagnosis.state in _HOPELESS for table in self.tables.values()):
            return NEVER
        waits = [
            side.oldest_wait_s or 0.0
            for table in self.tables.values()
            for side in (table.inserting, table.sampling)
        ]
        return SOMEBODY_WAITS if max(waits, default=0.0) > longer_than_s else 0

    def as_text(self) -> str:
        """A line for each table (name, state, sentence), then of memory, checkpoints and disk."""
        if not self.tables:
            return f"{self.address} has no tables"
        names = [text.plain(name) for name in self.tables]
        name_width = min(max(map(text.cells, names)), _MAX_NAME_WIDTH)
        state_width = max(len(table.diagnosis.state) for table in self.tables.values())
        lines = [
            f"{text.fit(name, name_width)}  {table.diagnosis.state:{state_width}}  "
            f"{text.plain(table.diagnosis.sentence)}"
            for name, table in zip(names, self.tables.values(), strict=True)
        ]
        if self.status.forecast is not None:
            lines.append(f"memory: {text.plain(self.status.forecast.sentence)}")
        lines.append(f"checkpoints: {server_facts.checkpoints(self.status)}")
        disk = server_facts.disk(self.status)
        return "\n".join(lines if disk is None else [*lines, f"disk: {disk}"])

    def as_dict(self) -> dict[str, Any]:
        """The same for programs: tables by name, and what is known of the server."""
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
        saved, store, forecast = self.status.checkpoints, self.status.store, self.status.forecast

        def age(at: float | None) -> float | None:
            return None if at is None else text.age(at, self.status.now)

        return {
            "server": self.address,
            "tables": tables,
            "memory": None if forecast is None else dataclasses.asdict(forecast),
            "last_checkpoint_s": age(saved.latest_saved_at),
            "loaded_checkpoint": saved.restored_from,
            "loaded_checkpoint_s": age(saved.restored_saved_at),
            "failing": self.failing,
            "store": None if store is None else dataclasses.asdict(store),
        }
