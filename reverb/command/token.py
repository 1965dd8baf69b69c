# SPDX-License-Identifier: Apache-2.0
"""`reverb token`: makes tokens, and checks files of tokens."""

import argparse
import datetime
import os
import pathlib
import sys
import tempfile
import urllib.parse
from collections.abc import Sequence

from reverb._checks.plain_files import append_to_file, read_file
from reverb.command import text
from reverb.command.server_arguments import Commands
from reverb.core import native
from reverb.errors import InvalidArgumentError

_ALL = "*"
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
# Characters of a table's name that are not escaped in a line, besides letters and digits.
_PLAIN = "!\"$&'()+-./:;<=>?@[\\]^_`{|}~"


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "token",
        help="make tokens, and check files of tokens",
        description="Makes tokens for the clients of a server, and checks the file of tokens that "
        "reverb_server --tokens and Server(tokens=...) read.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add_new(actions)
    check = actions.add_parser(
        "check",
        help="check a file of tokens",
        description="Checks a file of tokens, and says what each line allows.",
        epilog="exit codes: 0 a server can use the file; 1 it cannot, or an error",
    )
    check.add_argument("file", type=pathlib.Path, metavar="FILE")
    check.set_defaults(run=_check)


def _add_new(actions: Commands) -> None:
    new = actions.add_parser(
        "new",
        help="make a token",
        description="Makes a token. It is printed to standard output and stored nowhere; standard "
        "error has the line for the server's file, which contains only a hash of it.",
    )
    new.add_argument("--name", required=True, help="whose token it is, for messages and logs")
    new.add_argument(
        "--rights",
        required=True,
        metavar="RIGHT,...",
        help="its rights: sample (and reading the status), insert, update (priorities), admin "
        "(everything else, such as reset and checkpoint)",
    )
    new.add_argument(
        "--tables",
        default=_ALL,
        metavar="TABLE,...",
        help="only these tables (default: all; write a comma within a name into the line as %%2C)",
    )
    new.add_argument(
        "--until",
        type=_moment,
        metavar="TIME",
        help="when it expires: a date (at 00:00 UTC), or a time such as 2027-01-31T12:00:00Z",
    )
    new.add_argument(
        "--append",
        type=pathlib.Path,
        metavar="FILE",
        help="append the line to this file, which is made if there is none",
    )
    new.set_defaults(run=_new)


def _moment(value: str) -> str:
    """Returns a time in the form of the file.

    Raises:
      argparse.ArgumentTypeError: If it is no time, or if it is in the past.
    """
    try:
        # Older releases of Python do not accept the Z.
        time = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a date such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z, got "
            f"{value!r}"
        ) from None
    utc = datetime.timezone.utc
    time = time.replace(tzinfo=utc) if time.tzinfo is None else time.astimezone(utc)
    if time <= datetime.datetime.now(utc):
        raise argparse.ArgumentTypeError(f"must be in the future, got {value}")
    return time.strftime(_TIME_FORMAT)


def _new(arguments: argparse.Namespace) -> None:
    token = native.new_token()
    line = _line(arguments, token)
    _check_line(line)
    if arguments.append is not None:
        _append(arguments.append, line)
    # The token comes first: a line in the file whose token was lost would be of no use.
    print(token, flush=True)
    if arguments.append is None:
        print(f"Add this line to the file of tokens:\n{line}", file=sys.stderr)
    else:
        print(f"{text.plain(str(arguments.append))} has its line now", file=sys.stderr)


def _line(arguments: argparse.Namespace, token: str) -> str:
    name = arguments.name
    if name.startswith("#") or len(name.split()) != 1 or name != name.strip():
        raise InvalidArgumentError(f"--name must be one word and no comment, got {name!r}")
    rights = ",".join(right.strip() for right in arguments.rights.split(","))
    tables = arguments.tables
    if tables != _ALL:
        # A space is `%20` in the file.
        names = (table.strip() for table in tables.split(","))
        tables = ",".join(urllib.parse.quote(table, safe=_PLAIN) for table in names)
    fields = [name, rights, tables, native.token_hash(token)]
    if arguments.until is not None:
        fields.append(f"until={arguments.until}")
    return "  ".join(fields)


def _check_line(line: str) -> None:
    """Checks a line with the rules of the server.

    Raises:
      InvalidArgumentError: If a server would not accept it.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "tokens"
        path.touch(mode=0o600)  # Else there is a warning about its mode.
        path.write_text(f"{line}\n", encoding="utf-8")
        try:
            native.check_tokens_file(str(path))
        except InvalidArgumentError as error:
            # The user does not know the temporary file.
            problems = str(error).replace(f"{path}", "the line of this token")
            raise InvalidArgumentError(problems) from None


def _append(path: pathlib.Path, line: str) -> None:
    """Appends a line to a file of tokens by one write, so that a server never reads half of it.

    Raises:
      InvalidArgumentError: If the file exists and is bad; it is not changed.
      OSError: If it cannot be written.
    """
    end = ""
    if path.exists() and (before := read_file(path)):
        native.check_tokens_file(str(path))
        end = "" if before.endswith(b"\n") else "\n"
    data = f"{end}{line}\n".encode()
    with append_to_file(path) as file:
        written = file.write(data)
        os.fsync(file.fileno())
    if written != len(data):
        raise InvalidArgumentError(f"{path} is full: only a part of the line was written")


def _check(arguments: argparse.Namespace) -> None:
    native.check_tokens_file(str(arguments.file))
    lines = read_file(arguments.file).decode("utf-8-sig").splitlines()
    callers = [fields for line in lines if (fields := _fields(line))]
    for name, rights, tables, key, *until in callers:
        kind = "certificate" if key.startswith("cert:") else "token"
        names = [urllib.parse.unquote(table) for table in tables.split(",")]
        of_tables = "all tables" if tables == _ALL else f"tables {', '.join(names)}"
        print(text.plain(f"{kind} {name}: {rights} of {of_tables}{_told_end(until)}"))
    print(f"{text.plain(str(arguments.file))} is good: {text.plural(len(callers), 'line')}")


def _fields(line: str) -> list[str]:
    """Returns the fields of a valid line; an empty list for an empty line or a comment."""
    fields = line.split()
    comment = next((i for i, field in enumerate(fields) if field.startswith("#")), len(fields))
    return fields[:comment]


def _told_end(until: Sequence[str]) -> str:
    if not until:
        return ""
    end = until[0].removeprefix("until=")
    now = datetime.datetime.now(datetime.timezone.utc).strftime(_TIME_FORMAT)
    # Both have the same form, so comparing the texts compares the times.
    return f", expired at {end}" if end <= now else f", until {end}"
