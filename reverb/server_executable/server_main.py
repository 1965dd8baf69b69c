# SPDX-License-Identifier: Apache-2.0
"""The command `reverb_server`: a server in a process of its own."""

import argparse
import importlib.metadata
import math
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any

from reverb.byte_sizes import parse_byte_size_or_share
from reverb.checkpointers import DefaultCheckpointer
from reverb.client import DEFAULT_KEEPALIVE_S, DEFAULT_KEEPALIVE_TIMEOUT_S
from reverb.core import native
from reverb.errors import InvalidArgumentError, ReverbError
from reverb.server import MAX_PORT, Server
from reverb.server_executable import config_flag, server_from_proto, server_log
from reverb.server_executable.server_config import read_config
from reverb.server_executable.server_life import print_start, run_until_signalled

__all__ = ["app_run_main", "main"]

_USAGE_ERROR = 2

# Limits of both keepalive options, as in `Server`.
_MIN_KEEPALIVE_S = 0.1
_MAX_KEEPALIVE_S = 86_400

# Have no effect without --checkpoint-dir.
_CHECKPOINT_OPTIONS = (
    "checkpoint_interval",
    "checkpoint_name",
    "checkpoint_on_stop",
    "keep_checkpoints",
    "restore_settings",
)

_DESCRIPTION = """\
Serves tables until it is stopped.

When it is ready for clients it prints a line to standard output, for example
  reverb_server is ready on port 8000 of all addresses: tables my_table
Everything else goes to standard error. The server also offers gRPC's health service
(grpc.health.v1.Health) and reflection, which tools such as grpcurl use.
"""

_EPILOG = """\
config:
  A ReverbServerConfig message in protobuf's text form. A table needs a name, a sampler, a remover
  (fifo: true, lifo: true, uniform: true, heap { min_heap: true or false } or
  prioritized { priority_exponent: 0.8 }), a size and a rate limiter; max_times_sampled 0 means no
  limit. max_bytes of a table limits its memory (when_full: REMOVE or WAIT), max_bytes: "80%" beside
  port that of the server. With the rate limiter below, samples wait for the first item and nothing
  else waits:

  port: 8000
  tables: {
    table_name: "my_table"
    sampler: { fifo: true }
    remover: { fifo: true }
    max_size: 200
    max_times_sampled: 5
    rate_limiter: {
      min_size_to_sample: 1
      samples_per_insert: 1
      min_diff: -1.7976931348623157e308
      max_diff: 1.7976931348623157e308
    }
  }

signals:
  SIGTERM, Ctrl-C and SIGHUP (sent when the terminal is closed) stop the server: it saves its
  tables if --checkpoint-on-stop is given, ends waiting calls with an error, and closes the port.
  A second SIGTERM or Ctrl-C ends the process at once. So does any of them before the server is
  ready. A signal that was ignored at the start, as under nohup, stays ignored.

environment:
  REVERB_LOG is the lowest level that is logged: off, error, warn, info (the default), debug or
  trace, and levels of parts, such as info,server=debug. REVERB_LOG_FORMAT=json: --log-format json.

exit codes:
  0    stopped by SIGTERM or SIGHUP
  1    failed to start or stop: the port is taken, or a checkpoint is damaged or in use by another
       running server
  2    invalid command line or config; standard error names lines and fields
  130  stopped by Ctrl-C
"""


def main(unused_argv: Sequence[str] = ()) -> int:
    """Runs a server with the flags of absl; for `absl.app.run(main)`.

    Blocks until a signal stops it. `--config` is the only flag; the command has more options.

    Args:
      unused_argv: Arguments that absl did not read.

    Returns:
      The exit code of the process.
    """
    del unused_argv
    text = config_flag.get_server_config_text()
    return _run(text, "--config", _parse([f"--config={text}"]))


def app_run_main() -> None:
    """Runs the command `reverb_server`, then ends the process."""
    options = _parse(sys.argv[1:])
    if options.config is not None:
        sys.exit(_run(options.config, "--config", options))
    try:
        text = options.config_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        server_log.print_notice(
            f"cannot read --config-file {options.config_file}: {error}", "error"
        )
        sys.exit(_USAGE_ERROR)
    sys.exit(_run(text, str(options.config_file), options))


def _run(text: str, source: str, options: argparse.Namespace) -> int:
    parsed = read_config(text)
    for note in parsed.problems:
        server_log.print_notice(f"{source}, {note}", "error")
    if parsed.problems:
        return _USAGE_ERROR
    for note in parsed.unused:
        server_log.print_notice(f"{source}, {note}", "warn")
    config = parsed.config
    names = [it.table_name for it in config.tables]
    return run_until_signalled(
        lambda: _start(config, options), names, options.host, options.http_host
    )


def _start(config: Any, options: argparse.Namespace) -> Server:
    tables = server_from_proto.tables_from_proto(config.tables)
    max_bytes = options.max_bytes or config.max_bytes or None
    print_start(tables, max_bytes)
    port = config.port if options.port is None else options.port
    keepalive = {
        "keepalive_s": options.keepalive,
        "keepalive_timeout_s": options.keepalive_timeout,
    }
    more = {
        **keepalive,
        "max_bytes": max_bytes,
        "http_port": options.http_port,
        "http_host": options.http_host,
    }
    if options.checkpoint_dir is None:
        return Server(tables, port, host=options.host, **more)
    checkpointer = DefaultCheckpointer(
        options.checkpoint_dir,
        keep_latest=options.keep_checkpoints or 1,
        restore_settings=options.restore_settings,
        name=options.checkpoint_name,
    )
    return Server(
        tables,
        port,
        checkpointer,
        host=options.host,
        checkpoint_interval_s=options.checkpoint_interval,
        checkpoint_on_stop=options.checkpoint_on_stop,
        **more,
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = server_log.Parser(
        prog="reverb_server",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--port", metavar="N", type=_port, help="replaces the config's port; 0: any free port")
    add("--host", help="name or address to listen on; default: all addresses")
    config = parser.add_mutually_exclusive_group(required=True)
    config.add_argument("--config", metavar="TEXT", help="the config, see below")
    config.add_argument(
        "--config-file", metavar="PATH", type=pathlib.Path, help="file that holds the config"
    )
    add(
        "--keepalive",
        metavar="SECONDS",
        type=_keepalive,
        default=DEFAULT_KEEPALIVE_S,
        help="interval of pings to clients with an open call, 0: no pings; default: %(default)g",
    )
    add(
        "--keepalive-timeout",
        metavar="SECONDS",
        type=_keepalive_timeout,
        default=DEFAULT_KEEPALIVE_TIMEOUT_S,
        help="a client that sends nothing for so long after a ping is lost; default: %(default)g",
    )
    add(
        "--max-bytes",
        metavar="SIZE",
        type=_size,
        help="memory for chunks and items, for example 12GiB, or 80%% of what the process may use; "
        "replaces the config's max_bytes; default: no limit",
    )
    add(
        "--http-port",
        metavar="N",
        type=_port,
        help="port for a page of the status (/), metrics (/metrics), probes (/livez, /readyz) and "
        "the status as JSON (/api/status); 0: any free port; default: none",
    )
    add(
        "--http-host",
        default="127.0.0.1",
        help="name or address for --http-port; 0.0.0.0: all addresses; default: %(default)s",
    )
    add(
        "--log-format",
        choices=server_log.FORMATS,
        help="how lines of the log look; default: REVERB_LOG_FORMAT, or text",
    )
    version = importlib.metadata.version("reverb-replay")
    add("--version", action="version", version=f"reverb_server of reverb-replay {version}")

    add = parser.add_argument_group("checkpoints").add_argument
    add(
        "--checkpoint-dir",
        metavar="PATH",
        help="directory of checkpoints: load the latest, save new ones",
    )
    add(
        "--checkpoint-name",
        metavar="NAME",
        type=_name,
        help="name of this server if several share the directory: load only checkpoints of this "
        "name",
    )
    add("--checkpoint-interval", metavar="SECONDS", type=_seconds, help="time between saves")
    add("--checkpoint-on-stop", action="store_true", help="save before stopping")
    add("--keep-checkpoints", metavar="N", type=_count, help="number to keep; default: 1")
    add(
        "--restore-settings",
        action="store_true",
        help="load the tables' settings too, instead of the config's",
    )

    options = parser.parse_args([_long_option(argument) for argument in arguments])
    if options.checkpoint_dir is None:
        for name in _CHECKPOINT_OPTIONS:
            if getattr(options, name) not in (None, False):
                parser.error(f"--{name.replace('_', '-')} needs --checkpoint-dir")
    server_log.configure(options.log_format)
    return options


def _long_option(argument: str) -> str:
    """Normalises an option: absl also accepts one dash, and here `_` equals `-`."""
    match = re.fullmatch(r"--?([A-Za-z][\w-]+)(=.*)?", argument, re.DOTALL)
    if match is None:
        return argument
    return f"--{match[1].replace('_', '-')}{match[2] or ''}"


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"must be from 0 to {MAX_PORT}, got {port}")
    return port


def _name(text: str) -> str:
    try:
        native.check_server_name(text)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("name ")) from None
    return text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number over 0, got {text}")
    return seconds


def _keepalive(text: str) -> float | None:
    return None if float(text) == 0 else _keepalive_timeout(text)


def _keepalive_timeout(text: str) -> float:
    seconds = float(text)
    if not _MIN_KEEPALIVE_S <= seconds <= _MAX_KEEPALIVE_S:
        raise argparse.ArgumentTypeError(
            f"must be from {_MIN_KEEPALIVE_S} to {_MAX_KEEPALIVE_S}, got {text}"
        )
    return seconds


def _size(text: str) -> str:
    try:
        parse_byte_size_or_share("max_bytes", text)
    except ReverbError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("max_bytes ")) from None
    return text


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {count}")
    return count


if __name__ == "__main__":
    app_run_main()
