# SPDX-License-Identifier: Apache-2.0
"""`reverb checkpoint`: makes a running server save its tables now."""

import argparse
import time

from reverb.command import text
from reverb.command.server_arguments import Commands, add_address, add_timeout, client_of


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "checkpoint",
        help="make a server save its tables now",
        description="Makes a server, or all shards of a group, save the tables now, and waits "
        "until the checkpoint is on disk; inserts and samples continue meanwhile. Prints the path "
        "on the server, the size and the duration.",
        epilog="exit codes: 0 it is saved; 1 an error. After Ctrl-C the server continues to save.",
    )
    add_address(parser)
    add_timeout(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    client = client_of(arguments, "checkpoint")
    begin = time.monotonic()
    path = client.checkpoint()
    took = time.monotonic() - begin
    status = client.checkpoint_status()
    # The status may be of a later save.
    size = f", {text.bytes_(status.latest_bytes)}" if status.latest_path == path else ""
    print(f"saved {text.plain(path)}{size} in {text.interval(took)}")
