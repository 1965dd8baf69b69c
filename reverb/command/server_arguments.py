# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that talk to a running server."""

import argparse

from reverb.client import Client

DEFAULT_TIMEOUT_S = 10.0

Commands = argparse._SubParsersAction


def add_address(parser: argparse.ArgumentParser) -> None:
    """Adds the address of a server."""
    parser.add_argument("address", metavar="HOST:PORT", help="a running server")


def add_table(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Adds `--table`, which must be given."""
    parser.add_argument("--table", required=True, metavar="NAME", help=help_text)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Adds `--timeout`, the time that a server has to answer."""
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="how long to wait for a server (default: %(default)g)",
    )


def client_of(arguments: argparse.Namespace) -> Client:
    """Makes a client of the server that the arguments name."""
    return Client(arguments.address, connect_timeout_s=arguments.timeout)
