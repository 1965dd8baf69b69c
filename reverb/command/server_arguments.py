# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that talk to a running server."""

import argparse
import pathlib
from typing import Any

from reverb._server.tls import ClientTls
from reverb.client import Client
from reverb.command import addresses

# With the start of the command, a dead server is reported within 3 s.
DEFAULT_TIMEOUT_S = 2.5
# A connected server that does not answer is frozen, so the wait for it is only this part of the
# timeout for a server that may still be starting.
_PARTS_OF_SILENCE = 5
# It is longer where that is short, but ends before the timeout.
_LEAST_SILENCE_S = 2.0
_MOST_OF_TIMEOUT = 0.8

Commands = argparse._SubParsersAction


def add_address(parser: argparse.ArgumentParser, *, shows_several: bool = False) -> None:
    """Adds the address of a server or a group, and the options of its credentials."""
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        help=addresses.HELP + (addresses.SEVERAL_ARE_SHOWN if shows_several else ""),
    )
    add_credentials(parser)


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Adds the options of TLS and tokens. A token itself is never an option."""
    group = parser.add_argument_group(
        "TLS and tokens",
        "What is not given comes from REVERB_TLS_CA, REVERB_TLS_CERT, REVERB_TLS_KEY, "
        "REVERB_TLS_SERVER_NAME, and REVERB_TOKEN_FILE or REVERB_TOKEN.",
    )
    # Otherwise argparse would read `--token` as `--token-file`, and errors would show the token.
    group.add_argument("--token", type=_no_token, help=argparse.SUPPRESS)
    for flag, metavar, help_text in (
        (
            "--token-file",
            "PATH",
            "file that holds the token; there is no option for the token itself, because every "
            "user of the machine can see the options of a program",
        ),
        ("--tls-ca", "PATH", "authorities that the server is checked against, else the system's"),
        ("--tls-cert", "PATH", "certificate of this client, for a server that wants one"),
        ("--tls-key", "PATH", "its private key"),
    ):
        group.add_argument(flag, type=pathlib.Path, metavar=metavar, help=help_text)
    group.add_argument(
        "--tls-server-name",
        metavar="NAME",
        help="the name in the server's certificate, if it is not the host of the address",
    )


def _no_token(value: str) -> None:
    del value
    raise argparse.ArgumentTypeError(
        "every user of this machine could see it: use --token-file or REVERB_TOKEN_FILE, and "
        "replace this token"
    )


def credentials_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of TLS and tokens as arguments of `Client`.

    Raises:
      InvalidArgumentError: If a certificate is given without its key, or a key without its
        certificate.
    """
    given = {
        "ca": arguments.tls_ca,
        "cert": arguments.tls_cert,
        "key": arguments.tls_key,
        "server_name": arguments.tls_server_name,
    }
    has_tls = any(value is not None for value in given.values())
    return {"token_file": arguments.token_file, "tls": ClientTls(**given) if has_tls else None}


def add_table(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Adds the required option `--table`."""
    parser.add_argument("--table", required=True, metavar="NAME", help=help_text)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Adds `--timeout`, the time that a server has to answer."""
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="how long to wait for a server (default: %(default)g); if it accepts calls without "
        "answering, because it is frozen, the command gives up after 2 s, or a fifth of a longer "
        "time",
    )


def add_no_progress(parser: argparse.ArgumentParser) -> None:
    """Adds `--no-progress`; `progress` of the arguments is what `enabled` of `Progress` takes."""
    parser.add_argument(
        "--no-progress",
        action="store_const",
        const=False,
        dest="progress",
        help="no progress bar, not even on a terminal",
    )


def integer(value: str) -> int:
    """Parses an argument; argparse uses the name of this function in errors."""
    number = int(value)
    if number.bit_length() >= 64:
        raise argparse.ArgumentTypeError(f"must fit into 64 bits, got {value}")
    return number


def size(value: str) -> int:
    """Parses an argument that is at least 1."""
    number = integer(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return number


def option(name: str) -> str:
    """Returns the option for the name of an argument, for example `--max-size`."""
    return f"--{name.replace('_', '-')}"


# Options of commands by the names that errors of the package have for them.
_ANYWHERE = {
    "or raise connect_timeout_s": "or raise --timeout",
    "Client.scan(partial=True) reads": "--partial exports",
    "ClientTls.cert": "--tls-cert",
    "ClientTls.key": "--tls-key",
}
_AT_THE_BEGINNING = {
    "ca": "--tls-ca",
    "cert": "--tls-cert",
    "key": "--tls-key",
    "server_name": "--tls-server-name",
    "tls": "--tls-ca, --tls-cert or --tls-server-name",
    "timeout_s": "--timeout",
    "connect_timeout_s": "--timeout",
    "token_file": "--token-file",
}


def by_options(message: str, arguments: argparse.Namespace) -> str:
    """Replaces names of arguments in an error of the package by options of the command."""
    message = in_options(message)
    first, space, rest = message.partition(" ")
    if space and first in _AT_THE_BEGINNING and hasattr(arguments, "token_file"):
        return f"{_AT_THE_BEGINNING[first]} {rest}"
    if space and "_" in first and hasattr(arguments, first):
        return f"{option(first)} {rest}"
    return message


def in_options(message: str) -> str:
    """Replaces arguments that an error of the package advises to use by options."""
    for argument, option in _ANYWHERE.items():
        message = message.replace(argument, option)
    return message


class OperatorClient(Client):
    """A client of a command, which may use the connections that a full server keeps for these."""

    _is_for_operators = True


def client_of(arguments: argparse.Namespace, command: str) -> Client:
    """Makes a client of the server, or of the group, that a command changes.

    Raises:
      InvalidArgumentError: If the address leads to several servers.
    """
    address = addresses.one_server(arguments.address, command)
    return new_client(address, arguments.timeout, **credentials_of(arguments))


def new_client(address: str, timeout_s: float, **credentials: Any) -> Client:
    """Makes a client for a command, which gives up on frozen servers.

    `credentials` are further arguments of `Client`.
    """
    client = OperatorClient(address, connect_timeout_s=timeout_s, **credentials)
    least = min(_LEAST_SILENCE_S, timeout_s * _MOST_OF_TIMEOUT)
    client._give_up_on_silence(max(timeout_s / _PARTS_OF_SILENCE, least))
    return client
