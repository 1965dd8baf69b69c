# SPDX-License-Identifier: Apache-2.0
"""`reverb tls`: makes certificates for tests."""

import argparse
import pathlib
import shlex
import socket

from reverb.command.server_arguments import Commands
from reverb.core import native
from reverb.errors import InvalidArgumentError

_DEFAULT_DAYS = 90
_MAX_DAYS = 3650
_OF_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "tls",
        help="make certificates for tests",
        description="Makes certificates, to try TLS without an authority of one's own.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    self_signed = actions.add_parser(
        "self-signed",
        help="make an authority and a certificate of it",
        description="Makes an authority (ca.crt, ca.key) and a certificate of it (tls.crt, "
        "tls.key) in a directory, and says how a server and its clients use them. Whoever has "
        "ca.key can impersonate the server: no client needs it. Files that exist are not replaced.",
    )
    self_signed.add_argument(
        "directory", type=pathlib.Path, metavar="DIR", help="made if there is none"
    )
    self_signed.add_argument(
        "--name",
        action="append",
        metavar="HOST",
        help="name or IP address that clients write in the address; may be given more than once "
        "(default: this machine's name, localhost, 127.0.0.1 and ::1)",
    )
    self_signed.add_argument(
        "--days",
        type=_days,
        default=_DEFAULT_DAYS,
        metavar="N",
        help="how long the certificates are valid (default: %(default)s)",
    )
    self_signed.set_defaults(run=_self_signed)


def _days(value: str) -> int:
    days = int(value)
    if not 1 <= days <= _MAX_DAYS:
        raise argparse.ArgumentTypeError(f"must be from 1 to {_MAX_DAYS} days, got {days}")
    return days


def _self_signed(arguments: argparse.Namespace) -> None:
    names = arguments.name or list(dict.fromkeys([socket.gethostname(), *_OF_THIS_MACHINE]))
    if not all(names):
        raise InvalidArgumentError("--name must not be empty")
    written = [pathlib.Path(path) for path in _made(arguments.directory, names, arguments.days)]
    paths = {path.name: shlex.quote(str(path.absolute())) for path in written}
    host = f"[{names[0]}]" if ":" in names[0] else names[0]
    print(
        f"{', '.join(str(path) for path in written)} are valid for {arguments.days} days, for "
        f"{', '.join(names)}.\n\n"
        "Server:\n"
        f"  reverb_server --tls-cert {paths['tls.crt']} --tls-key {paths['tls.key']} "
        "--port 8000 --config-file ...\n"
        "Clients, which need ca.crt only:\n"
        f"  export REVERB_TLS_CA={paths['ca.crt']}\n"
        f"  reverb inspect grpcs://{host}:8000\n"
        f'  reverb.Client("grpcs://{host}:8000", tls=reverb.ClientTls(ca="ca.crt"))'
    )


def _made(directory: pathlib.Path, names: list[str], days: int) -> list[str]:
    directory.mkdir(parents=True, exist_ok=True)
    return native.self_signed(str(directory), names, days)
