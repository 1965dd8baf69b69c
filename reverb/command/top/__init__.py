# SPDX-License-Identifier: Apache-2.0
"""`reverb top`: shows the state of a running server in a terminal, or once as text.

Only `app` and the widgets of its screen need Textual; they are imported for a terminal alone.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence

from reverb.command import text
from reverb.command.addresses import servers_of
from reverb.command.server_arguments import Commands, add_address, add_timeout, credentials_of
from reverb.command.several import ask_each
from reverb.command.status_source import SERVER_DOWN, StatusSource
from reverb.command.top import snapshot
from reverb.command.top.picture import pictures_for
from reverb.errors import FailedPreconditionError, ReverbError

_INTERVAL_S = 1.0
_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.1, 3600.0


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "top",
        help="watch a running server in the terminal",
        description="Shows the state of a running server and refreshes it: for each table its "
        "state, rates and limits; connected clients; and the use of memory.",
        epilog="Without --once it needs Textual: pip install 'textual>=1.0'. exit codes of --once: "
        "0; 1 no answer; 5 a shard of a group, or one of several servers, does not answer",
    )
    add_address(parser, shows_several=True)
    parser.add_argument("table", nargs="?", help="only this table")
    add_timeout(parser)
    parser.add_argument(
        "--interval",
        type=_interval,
        default=_INTERVAL_S,
        metavar="SECONDS",
        help="time between two queries of the server (default: %(default)g)",
    )
    parser.add_argument("--once", action="store_true", help="print everything as text, and end")
    parser.add_argument(
        "--json",
        action="store_true",
        help="with --once: print JSON, for programs, equal to /api/status of the page",
    )
    parser.set_defaults(run=_run, parser=parser)


def _interval(given: str) -> float:
    value = float(given)
    if not _LEAST_INTERVAL_S <= value <= _MOST_INTERVAL_S:
        raise argparse.ArgumentTypeError(
            f"must be from {_LEAST_INTERVAL_S} to {_MOST_INTERVAL_S:g} seconds, got {value:g}"
        )
    return value


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json and not arguments.once:
        arguments.parser.error("--json needs --once")
    addresses = servers_of(arguments.address)
    if not arguments.once:
        return run([_source(arguments, it) for it in addresses], arguments.interval)
    if len(addresses) > 1:
        return _run_several(arguments, addresses)
    shown, code = _ask(arguments, arguments.address)
    print(shown)
    return code


def _source(arguments: argparse.Namespace, address: str) -> StatusSource:
    return StatusSource(address, arguments.table, arguments.timeout, **credentials_of(arguments))


def _ask(arguments: argparse.Namespace, address: str) -> tuple[str, int]:
    """What is printed of a server, and the exit code."""
    asked = _source(arguments, address)
    shown = asked.ask_for_json() if arguments.json else as_text(asked)
    return shown, SERVER_DOWN if asked.is_partial else 0


def _run_several(arguments: argparse.Namespace, addresses: Sequence[str]) -> int:
    """Prints the state of each server, under its name."""
    answers = ask_each(addresses, lambda address: _ask(arguments, address))
    if arguments.json:
        values = [
            {"server": address, "error": str(it)}
            if isinstance(it, ReverbError)
            else {"server": address, "status": json.loads(it[0])}
            for address, it in answers.items()
        ]
        print(json.dumps({"servers": values}, indent=2))
    else:
        shown = [
            f"{text.plain(address)}  no answer: {text.plain(str(it))}"
            if isinstance(it, ReverbError)
            else it[0]
            for address, it in answers.items()
        ]
        print("\n\n".join(shown))
    return max(SERVER_DOWN if isinstance(it, ReverbError) else it[1] for it in answers.values())


def as_text(source: StatusSource) -> str:
    """Returns the state of a server as text, as wide as the terminal.

    Raises:
      ReverbError: If the server does not answer.
    """
    status = source.ask_for_rates(with_streams=True)
    pictures = pictures_for(sys.stdout.encoding or "ascii")
    width = shutil.get_terminal_size().columns
    return pictures.words(snapshot.as_text(status, source.address, pictures, width))


def run(sources: Sequence[StatusSource], interval_s: float) -> int:
    """Shows the state of servers in the terminal until the user quits.

    Returns:
      An exit code: 0, or 128 and the number of the signal that ended it.

    Raises:
      FailedPreconditionError: If Textual is not installed, or there is no terminal.
      ReverbError: If no server answers the first query.
    """
    try:
        from reverb.command.top import app
    except ImportError as error:
        raise FailedPreconditionError(
            f"reverb top needs Textual, which cannot be imported ({error}); "
            "pip install 'textual>=1.0'. reverb top --once needs nothing"
        ) from None
    # Textual writes to standard error.
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not all(stream.isatty() for stream in streams) or os.environ.get("TERM") == "dumb":
        raise FailedPreconditionError(
            "reverb top needs a terminal; reverb top --once prints everything as text"
        )
    return app.run(sources, interval_s)
