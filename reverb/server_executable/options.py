# SPDX-License-Identifier: Apache-2.0
"""The options of the command `reverb_server`, each with its flag, variable and config field.

This is the only list. The flags and their help, the environment variables, the checks of the config
file, `--print-config` and the table in the documentation are made of it.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from google.protobuf import text_format

from reverb._checks.byte_sizes import parse_byte_size_or_share
from reverb._client.connecting import DEFAULT_KEEPALIVE_S, DEFAULT_KEEPALIVE_TIMEOUT_S
from reverb._server.limits import Limits
from reverb._server.shard import check_group, shard_addresses
from reverb._server.split_table import MAX_SHARDS
from reverb._server.store import MAX_SYNC_INTERVAL_S, MIN_SYNC_INTERVAL_S, parse_store_bytes
from reverb._server.tls import MAX_CONNECTION_AGE_S, MIN_CONNECTION_AGE_S
from reverb.core import native, protos
from reverb.errors import ReverbError
from reverb.server import MAX_CHECKPOINT_INTERVAL_S, MAX_DRAIN_S, MAX_PORT
from reverb.server_executable.server_log import FORMATS

__all__ = ["OPTIONS", "VARIABLE_PREFIX", "Option", "option_named"]

VARIABLE_PREFIX = "REVERB_SERVER_"
DEFAULT_DRAIN_TIMEOUT_S = 10.0

# Limits of both keepalive options, as in `Server`.
_MIN_KEEPALIVE_S = 0.1
_MAX_KEEPALIVE_S = 86_400
# The largest value of this field in the config.
_MAX_COUNT = 2**31 - 1

_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of the server.

    Attributes:
      name: Its flag without dashes and with underscores, for example `http_port`.
      field: The path of its field in `ReverbServerConfig`, for example `server.http.port`.
      help: Description for `--help` and the documentation.
      kind: Type of its value: `str`, `int`, `float` (of seconds) or `bool`.
      default: Value if the option is not set; `None`: no value.
      metavar: Name of the value in `--help`; empty: that of the kind.
      check: Raises `ValueError` or `ReverbError` if a value is out of its range; the text begins
        with `must`, or with `argument` and `must`. `None`: only an empty text is.
      argument: The name that a text of `check` may begin with.
      needs: Names of the options without which this one has no effect.
    """

    name: str
    field: str
    help: str
    kind: type = str
    default: Any = None
    metavar: str = ""
    check: Callable[[Any], object] | None = None
    argument: str = ""
    needs: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """For example `--http-port`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """For example `REVERB_SERVER_HTTP_PORT`."""
        return f"{VARIABLE_PREFIX}{self.name.upper()}"

    def parse(self, text: str) -> Any:
        """Returns the value that a flag or a variable gives.

        Raises:
          ValueError: If it is out of its range; the text says what it must be.
        """
        value = _PARSERS[self.kind](text)
        problem = self.problem(value)
        if problem is not None:
            raise ValueError(problem)
        return value

    def problem(self, value: object) -> str | None:
        """Returns a text about the value's range if it is outside, else `None`."""
        try:
            (self.check or _check_not_empty)(value)
        except (ValueError, ReverbError) as error:
            return str(error).removeprefix(f"{self.argument} ")
        return None

    def read(self, config: Any) -> Any:
        """Returns the value of the field in a `ReverbServerConfig`; `None` if it is not set."""
        *parents, leaf = self.field.split(".")
        message = config
        for name in parents:
            if not message.HasField(name):
                return None
            message = getattr(message, name)
        value = getattr(message, leaf)
        try:
            return value if message.HasField(leaf) else None
        except ValueError:  # In fields of dm-reverb, 0 and the empty text mean "not set".
            return value or None

    def line(self, value: object) -> str:
        """Returns the line of a config in text form that sets the field to a value."""
        *parents, leaf = self.field.split(".")
        message = protos.ReverbServerConfig()
        for name in parents:
            message = getattr(message, name)
        setattr(message, leaf, value)
        # Protobuf does not print a value that equals the default of the field.
        return text_format.MessageToString(message, as_utf8=True).strip() or f"{leaf}: {value}"


def _parse_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"must be UTF-8, got {text!r}") from None
    return text


def _parse_number(kind: type, text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"must be {wanted}, got {text!r}") from None


def _parse_truth(text: str) -> bool:
    truth = _TRUTHS.get(text.strip().lower())
    if truth is None:
        raise ValueError(f"must be true or false, got {text!r}")
    return truth


_PARSERS: dict[type, Callable[[str], Any]] = {
    str: _parse_text,
    int: functools.partial(_parse_number, int),
    float: functools.partial(_parse_number, float),
    bool: _parse_truth,
}


def _check_not_empty(value: object) -> None:
    if value == "":
        raise ValueError("must not be empty")


def _from_to(least: float, most: float) -> Callable[[float], None]:

    def check(number: float) -> None:
        if not least <= number <= most:
            got = number if isinstance(number, int) else _short(number)
            raise ValueError(f"must be from {least} to {most}, got {got}")

    return check


_check_port = _from_to(0, MAX_PORT)
_check_keepalive_timeout = _from_to(_MIN_KEEPALIVE_S, _MAX_KEEPALIVE_S)


def _check_keepalive(seconds: float) -> None:
    if seconds != 0:
        _check_keepalive_timeout(seconds)


def _check_interval(seconds: float) -> None:
    if not 0 < seconds < math.inf:
        raise ValueError(f"must be a finite number over 0, got {_short(seconds)}")
    if seconds > MAX_CHECKPOINT_INTERVAL_S:
        raise ValueError(f"must be at most {MAX_CHECKPOINT_INTERVAL_S}, got {_short(seconds)}")


def _check_log_format(name: str) -> None:
    if name not in FORMATS:
        raise ValueError(f"must be {' or '.join(FORMATS)}, got {name!r}")


def _check_count(count: int) -> None:
    if count < 1:
        raise ValueError(f"must be at least 1, got {count}")
    if count > _MAX_COUNT:
        raise ValueError(f"must be at most {_MAX_COUNT}, got {count}")


def _check_unix_path(path: str) -> None:
    _check_not_empty(path)
    try:
        native.check_unix_path(path)
    except ReverbError as error:
        raise ValueError(f"must be the path of a Unix socket: {error}") from None


def _check_max_bytes(size: str) -> None:
    parse_byte_size_or_share("max_bytes", size)


def _check_store_max_bytes(size: str) -> None:
    parse_store_bytes("max_bytes", size)


def _short(number: float) -> str:
    return f"{number:.15g}"


def _limit_option(limit: dataclasses.Field[Any]) -> Option:
    """Returns the option of a field of `reverb.Limits`."""
    return Option(
        f"limit_{limit.name}",
        field=f"server.limits.{limit.name}",
        kind=float if limit.name.endswith("_s") else int,
        check=lambda value: Limits(**{limit.name: value}),
        argument=f"Limits.{limit.name}",
        help=limit.metadata["help"],
    )


OPTIONS = (
    Option(
        "port",
        field="port",
        kind=int,
        default=0,
        check=_check_port,
        help="port for clients; 0: any free port",
    ),
    Option(
        "host",
        field="server.host",
        help="name or address to listen on; without it all addresses",
    ),
    Option(
        "unix_path",
        field="server.unix_path",
        metavar="PATH",
        check=_check_unix_path,
        help="Unix socket to listen on besides the port; clients write unix:// in front of its "
        "absolute path",
    ),
    Option(
        "max_bytes",
        field="max_bytes",
        metavar="SIZE",
        check=_check_max_bytes,
        argument="max_bytes",
        help="memory for chunks and items, for example 12GiB, or 80% of what the process may use",
    ),
    Option(
        "store",
        field="server.store.path",
        metavar="PATH",
        help="directory on a local disk: tables come back from it after a crash, and it has data "
        "that does not fit into --max-bytes",
    ),
    Option(
        "store_max_bytes",
        field="server.store.max_bytes",
        metavar="SIZE",
        check=_check_store_max_bytes,
        argument="max_bytes",
        needs=("store",),
        help="size of all its files, for example 200GiB; without it that of the file system less "
        "5 %",
    ),
    Option(
        "store_journal",
        field="server.store.journal",
        kind=bool,
        default=True,
        needs=("store",),
        help="keep the tables after a crash; without it --max-bytes is needed",
    ),
    Option(
        "store_sync_interval",
        field="server.store.sync_interval_s",
        kind=float,
        default=1.0,
        metavar="SECONDS",
        check=_from_to(MIN_SYNC_INTERVAL_S, MAX_SYNC_INTERVAL_S),
        needs=("store",),
        help="time between two commits of the journal",
    ),
    Option(
        "store_restore_settings",
        field="server.store.restore_settings",
        kind=bool,
        default=False,
        needs=("store",),
        help="take the settings of tables from the journal, not from the config",
    ),
    Option(
        "http_port",
        field="server.http.port",
        kind=int,
        check=_check_port,
        help="port for a page of the status (/), metrics (/metrics), probes (/livez, /readyz) and "
        "the status as JSON (/api/status); 0: any free port",
    ),
    Option(
        "http_host",
        field="server.http.host",
        default="127.0.0.1",
        help="name or address for --http-port; 0.0.0.0: all addresses",
    ),
    Option(
        "http_tls",
        field="server.tls.http",
        kind=bool,
        default=False,
        needs=("tls_cert", "http_port"),
        help="TLS for --http-port, too, with the same certificate",
    ),
    Option(
        "tls_cert",
        field="server.tls.cert",
        metavar="PATH",
        needs=("tls_key",),
        help="certificate in PEM; clients then write grpcs:// in front of the address",
    ),
    Option(
        "tls_key",
        field="server.tls.key",
        metavar="PATH",
        needs=("tls_cert",),
        help="private key of the certificate",
    ),
    Option(
        "tls_client_ca",
        field="server.tls.client_ca",
        metavar="PATH",
        needs=("tls_cert",),
        help="authorities of client certificates; every client must show one then",
    ),
    Option(
        "tls_max_connection_age",
        field="server.tls.max_connection_age_s",
        kind=float,
        check=_from_to(MIN_CONNECTION_AGE_S, MAX_CONNECTION_AGE_S),
        needs=("tls_cert",),
        help="a connection that is older is closed when its calls have ended",
    ),
    Option(
        "tokens",
        field="server.tokens",
        metavar="PATH",
        help="file that says which token may do what; clients without one are refused",
    ),
    Option(
        "insecure_tokens",
        field="server.insecure_tokens",
        kind=bool,
        default=False,
        needs=("tokens",),
        help="let tokens cross a network without TLS, where others can read them",
    ),
    Option(
        "keepalive",
        field="server.keepalive_s",
        kind=float,
        default=DEFAULT_KEEPALIVE_S,
        check=_check_keepalive,
        help="interval of pings to clients with an open call; 0: no pings",
    ),
    Option(
        "keepalive_timeout",
        field="server.keepalive_timeout_s",
        kind=float,
        default=DEFAULT_KEEPALIVE_TIMEOUT_S,
        check=_check_keepalive_timeout,
        help="a client that sends nothing for so long after a ping is lost",
    ),
    Option(
        "drain_timeout",
        field="server.drain_timeout_s",
        kind=float,
        default=DEFAULT_DRAIN_TIMEOUT_S,
        check=_from_to(0, MAX_DRAIN_S),
        help="how long a stop waits until all inserts are confirmed; 0: not at all",
    ),
    *map(_limit_option, dataclasses.fields(Limits)),
    Option(
        "threads",
        field="server.threads",
        kind=int,
        check=_from_to(1, 1024),
        help="threads that answer calls; without it REVERB_THREADS, or one for each processor",
    ),
    Option(
        "log_format",
        field="server.log.format",
        metavar="FORMAT",
        check=_check_log_format,
        help="how lines of the log look, text or json; without it REVERB_LOG_FORMAT, or text",
    ),
    Option(
        "checkpoint_dir",
        field="server.checkpoint.dir",
        metavar="PATH",
        help="directory of checkpoints: load the latest, save new ones",
    ),
    Option(
        "checkpoint_name",
        field="server.checkpoint.name",
        metavar="NAME",
        check=native.check_server_name,
        argument="name",
        needs=("checkpoint_dir",),
        help="name of this server if several share the directory: load only checkpoints of this "
        "name",
    ),
    Option(
        "load_checkpoint",
        field="server.checkpoint.load",
        metavar="PATH",
        needs=("checkpoint_dir",),
        help="load this checkpoint and no other, at every start; no save deletes it",
    ),
    Option(
        "checkpoint_interval",
        field="server.checkpoint.interval_s",
        kind=float,
        check=_check_interval,
        needs=("checkpoint_dir",),
        help="time between saves",
    ),
    Option(
        "checkpoint_on_stop",
        field="server.checkpoint.on_stop",
        kind=bool,
        default=False,
        needs=("checkpoint_dir",),
        help="save before stopping",
    ),
    Option(
        "keep_checkpoints",
        field="server.checkpoint.keep",
        kind=int,
        default=1,
        check=_check_count,
        needs=("checkpoint_dir",),
        help="number to keep",
    ),
    Option(
        "restore_settings",
        field="server.checkpoint.restore_settings",
        kind=bool,
        default=False,
        needs=("checkpoint_dir",),
        help="load the tables' settings too, instead of the config's",
    ),
    Option(
        "shard_index",
        field="server.shard.index",
        kind=int,
        metavar="I",
        check=_from_to(0, MAX_SHARDS - 1),
        needs=("num_shards",),
        help="index of this server in a group that shares the load of the tables, from 0 on; give "
        "the tables the sizes and rate limiters of the whole group",
    ),
    Option(
        "num_shards",
        field="server.shard.num_shards",
        kind=int,
        check=_from_to(1, MAX_SHARDS),
        needs=("shard_index",),
        help="number of servers of the group",
    ),
    Option(
        "group",
        field="server.shard.group",
        metavar="NAME",
        check=check_group,
        argument="group",
        needs=("shard_index",),
        help="name of the group; a server accepts no map of another group",
    ),
    Option(
        "group_address",
        field="server.shard.group_address",
        metavar="ADDRESS",
        check=shard_addresses,
        argument="address",
        needs=("shard_index",),
        help="address of the group, for example shards:///a:8000,b:8000; the server with index 0 "
        "then moves budget of rate limiters between the servers, which allow no inserts and "
        "samples before",
    ),
)

_BY_NAME = {option.name: option for option in OPTIONS}


def option_named(name: str) -> Option:
    """Returns an option by its name, for example `http_port`."""
    return _BY_NAME[name]
