# SPDX-License-Identifier: Apache-2.0
"""`reverb reset`: removes all items of a table, after a question."""

import argparse
import sys

from reverb.command import text
from reverb.command.server_arguments import Commands, add_address, add_table, add_timeout, client_of
from reverb.command.source import table_of
from reverb.errors import FailedPreconditionError

_NOT_DONE = 1


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "reset",
        help="remove all items of a table",
        description="Removes all items of a table and sets the counters of its rate limiter to 0. "
        "It asks first, and says how many items will be lost.",
        epilog="exit codes: 0 the table is empty; 1 an error, or the answer was no; 5 some "
        "shards of a group have reset it, and others have not",
    )
    add_address(parser)
    add_table(parser, "the table to empty")
    parser.add_argument("--yes", action="store_true", help="do not ask, for scripts")
    add_timeout(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    client = client_of(arguments, "reset")
    count = table_of(client, arguments.table).current_size
    items = f"{text.number(count)} item{'' if count == 1 else 's'}"
    table = f"table {text.plain(arguments.table)} of {arguments.address}"
    if not arguments.yes and not confirmed(f"{items} of {table} will be lost. Reset it?"):
        print("nothing was removed")
        return _NOT_DONE
    client.reset(arguments.table)
    print(f"{table} is empty: it had {items}")
    return 0


def confirmed(question: str) -> bool:
    """Asks on the terminal.

    Raises:
      FailedPreconditionError: If there is none.
    """
    if not (sys.stdin and sys.stdin.isatty()):
        raise FailedPreconditionError(
            f"{question} There is no terminal to answer on; give --yes to do it"
        )
    # Standard output may be a file.
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
