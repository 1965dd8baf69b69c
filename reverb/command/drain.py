# SPDX-License-Identifier: Apache-2.0
"""`reverb drain`: prepares a server to be stopped, with an exit code for scripts."""

import argparse
import math

from reverb.command import text
from reverb.command.addresses import one_server, shard_of
from reverb.command.server_arguments import (
    DEFAULT_TIMEOUT_S,
    Commands,
    add_address,
    credentials_of,
    new_client,
)

# Exit code, besides 0, and 1 for errors.
STILL_OPEN = 3

_DRAIN_S = 30.0


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "drain",
        help="prepare a server to be stopped",
        description="Ends all streams of a server, or of all shards of a group, which accept no "
        "new ones until they are started again. Clients retry everything that was not confirmed, "
        "at the next server of their address or at this one after its restart.",
        epilog="exit codes: 0 all streams have ended; 3 some are still open; 1 no answer of the "
        "server, or another error; 5 some shards of a group drain, and others do not. A drain "
        "cannot be undone, not even with Ctrl-C.",
    )
    add_address(parser)
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=_DRAIN_S,
        metavar="SECONDS",
        help="how long to wait for the end of the streams (default: %(default)g)",
    )
    parser.add_argument(
        "--shard",
        type=int,
        metavar="N",
        help="drain only the shard with this index of a group (default: all shards)",
    )
    parser.set_defaults(run=_run)


def _seconds(value: str) -> float:
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be at least 0 seconds, got {seconds:g}")
    return seconds


def _run(arguments: argparse.Namespace) -> int:
    credentials = credentials_of(arguments)
    address = one_server(arguments.address, "drain")
    client = new_client(address, DEFAULT_TIMEOUT_S, **credentials)
    shown = address
    if arguments.shard is not None:
        address = shard_of(client, arguments.shard)
        client = new_client(address, DEFAULT_TIMEOUT_S, **credentials)
        shown = f"shard {arguments.shard} ({address})"
    still_open = client.drain(round(1_000 * arguments.timeout))
    if not still_open:
        print(f"{shown} is drained: all streams have ended")
        return 0
    streams = text.plural(still_open, "stream")
    are = "is" if still_open == 1 else "are"
    print(f"{streams} of {shown} {are} still open after {arguments.timeout:g} s")
    return STILL_OPEN
