# SPDX-License-Identifier: Apache-2.0
"""The command line of `reverb_server`."""

import argparse
import dataclasses
import enum
import importlib.metadata
import pathlib
import re
import textwrap
from collections.abc import Mapping, Sequence

from reverb.server_executable import server_log
from reverb.server_executable.config_spellings import selector_spellings
from reverb.server_executable.environment import (
    CONFIG_FILE_VARIABLE,
    CONFIG_VARIABLE,
    Environment,
    read_environment,
)
from reverb.server_executable.options import OPTIONS, Option
from reverb.server_executable.settings import ConfigSource, Given

__all__ = ["Action", "CommandLine", "parse_command_line", "version_text"]

_DESCRIPTION = """\
Serves tables until it is stopped.

When it is ready for clients it prints a line to standard output, for example
  reverb_server is ready on port 8000 of all addresses: tables my_table
Everything else goes to standard error. The server also offers gRPC's health service
(grpc.health.v1.Health) and reflection, which tools such as grpcurl use.
"""

_EPILOG = """\
config:
  A ReverbServerConfig message in protobuf's text form. A table needs a name, a sampler, a remover,
  a size and a rate limiter (min_size: 1000, queue: 100, stack: 100, sample_to_insert_ratio {
  samples_per_insert: 4 min_size_to_sample: 1000 error_buffer: 400 }, or the four numbers of
  dm-reverb); queue: true or stack: true gives all of them but the size. max_times_sampled 0 means
  no limit. max_bytes of a table limits its memory (when_full: REMOVE or WAIT). max_priority says
  which items count for MAX_PRIORITY (PRESENT or EVER). The options of this command have fields too,
  most of them in a message server { ... }; --print-config shows all.

  SELECTORS

  With this rate limiter, samples wait for the first item, and nothing else waits:

  port: 8000
  tables: {
    table_name: "my_table"
    sampler: { fifo: true }
    remover: { fifo: true }
    max_size: 200
    max_times_sampled: 5
    rate_limiter: { min_size: 1 }
  }

signals:
  SIGTERM and Ctrl-C stop the server: it accepts no new calls, waits at most --drain-timeout until
  all inserts are confirmed, saves its tables if --checkpoint-on-stop is given, ends waiting calls
  with an error, and closes the port. A second SIGTERM or Ctrl-C ends the process at once. So does
  any of them before the server is ready.

  SIGHUP reads the file of --config-file again. The settings that `reverb configure` changes can
  change; if anything else is different, or anything is wrong, nothing changes, and standard error
  says why. It also reads certificates and tokens again; if one of these two is bad, its earlier
  content stays in force. The server also does that by itself every 10 s. Other paths need a
  restart. Without any such file, SIGHUP stops the server like SIGTERM: it is also sent when the
  terminal is closed.

  A signal that was ignored at the start, as SIGHUP is under nohup, does not stop the server. SIGHUP
  reads the files even then.

environment:
  REVERB_SERVER_PORT, REVERB_SERVER_HTTP_PORT and so on stand for --port, --http-port and so on;
  REVERB_SERVER_CONFIG and REVERB_SERVER_CONFIG_FILE are the config; true and false stand for flags
  without a value. An empty variable counts as not set. A flag wins over its variable, and a
  variable over the config.

  REVERB_LOG is the lowest level that is logged: off, error, warn, info (the default), debug or
  trace, and levels of parts, such as info,server=debug. REVERB_LOG_FORMAT=json: --log-format json.

exit codes:
  0    stopped by SIGTERM or SIGHUP; --check found nothing wrong
  1    failed to start or stop: the port is taken, or a checkpoint is damaged or in use by another
       running server
  2    invalid command line, environment or config; standard error names lines and fields
  130  stopped by Ctrl-C
"""


_METAVARS = {int: "N", float: "SECONDS"}


class Action(enum.Enum):
    """The actions of the command."""

    SERVE = enum.auto()
    CHECK = enum.auto()
    PRINT_CONFIG = enum.auto()


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """A command line, with the environment.

    Attributes:
      action: Action of the command.
      given: The config and the options.
      notes: Remarks on variables without effect, each a line.
    """

    action: Action
    given: Given
    notes: list[str]


def parse_command_line(arguments: Sequence[str], variables: Mapping[str, str]) -> CommandLine:
    """Reads arguments and environment variables. Values of options are not checked yet.

    Raises:
      SystemExit: After `--help` and `--version`, and, with a line on standard error, if there is an
        unknown argument, or no config, or more than one.
    """
    parser = _make_parser()
    parsed = parser.parse_args([_long_option(argument) for argument in arguments])
    environment = read_environment(variables)
    flags = {}
    for option in OPTIONS:
        value = getattr(parsed, option.name)
        if value is not None:
            flags[option.name] = str(value).lower() if option.kind is bool else value
    action = Action.SERVE
    if parsed.check:
        action = Action.CHECK
    elif parsed.print_config:
        action = Action.PRINT_CONFIG
    source = _config_source(parser, parsed, environment)
    return CommandLine(action, Given(source, flags, environment.texts), environment.notes)


def version_text() -> str:
    """Returns the name of the command and the version of the package."""
    return f"reverb_server of reverb-replay {importlib.metadata.version('reverb-replay')}"


def _config_source(
    parser: argparse.ArgumentParser, parsed: argparse.Namespace, environment: Environment
) -> ConfigSource:
    if parsed.config is not None:
        _check_is_no_path(parser, "--config", parsed.config, "--config-file")
        return ConfigSource("--config", text=parsed.config)
    if parsed.config_file is not None:
        return ConfigSource("--config-file", parsed.config_file)
    if environment.config is not None and environment.config_file is not None:
        parser.error(f"give only one of {CONFIG_VARIABLE} and {CONFIG_FILE_VARIABLE}")
    if environment.config is not None:
        _check_is_no_path(parser, CONFIG_VARIABLE, environment.config, CONFIG_FILE_VARIABLE)
        return ConfigSource(CONFIG_VARIABLE, text=environment.config)
    if environment.config_file is not None:
        return ConfigSource(CONFIG_FILE_VARIABLE, pathlib.Path(environment.config_file))
    parser.error("one of the arguments --config --config-file is required")


def _check_is_no_path(
    parser: argparse.ArgumentParser, origin: str, text: str, for_paths: str
) -> None:
    """Ends the program if the path of a file was given instead of a config."""
    # Every field of a config has one of these.
    if text.strip() and not set(":{<") & set(text):
        parser.error(
            f"{origin} must be the text of a config, got {text.strip()!r}: {for_paths} is for "
            "the path of a file"
        )


def _make_parser() -> argparse.ArgumentParser:
    parser = server_log.Parser(
        prog="reverb_server",
        description=_DESCRIPTION,
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    config = parser.add_mutually_exclusive_group()
    config.add_argument("--config", metavar="TEXT", help="the config, see below")
    config.add_argument(
        "--config-file", metavar="PATH", type=pathlib.Path, help="file that holds the config"
    )
    security = parser.add_argument_group(
        "TLS and tokens", "The files are read again when they change; see signals."
    )
    checkpoints = parser.add_argument_group("checkpoints")
    store = parser.add_argument_group("tables larger than memory")
    limits = parser.add_argument_group("limits for a single peer, as in reverb.Limits")
    group = parser.add_argument_group(
        "several servers", "They share the load of the same tables: each is a shard of a group."
    )
    for option in OPTIONS:
        names = {option.name, *option.needs}
        if "checkpoint_dir" in names:
            _add_option(checkpoints, option)
        elif option.name.startswith("limit_"):
            _add_option(limits, option)
        elif "store" in names:
            _add_option(store, option)
        elif names & {"tls_cert", "tokens"}:
            _add_option(security, option)
        elif "shard_index" in names:
            _add_option(group, option)
        else:
            _add_option(parser, option)
    actions = parser.add_argument_group("instead of a server").add_mutually_exclusive_group()
    actions.add_argument(
        "--check",
        action="store_true",
        help="check config, environment and command line; exit code 0, or 2 with all problems",
    )
    actions.add_argument(
        "--print-config",
        action="store_true",
        help="print the complete config that a server would run with, and the origin of each value",
    )
    actions.add_argument("--version", action="version", version=version_text())
    return parser


def _epilog() -> str:
    selectors = textwrap.wrap(f"A sampler or remover is {selector_spellings()}.", 98)
    return _EPILOG.replace("SELECTORS", "\n  ".join(selectors))


def _add_option(group: argparse._ActionsContainer, option: Option) -> None:
    text = option.help.replace("%", "%%")
    if option.kind is bool:
        group.add_argument(option.flag, action=argparse.BooleanOptionalAction, help=text)
        return
    default = "none" if option.default is None else str(option.default).removesuffix(".0")
    metavar = option.metavar or _METAVARS.get(option.kind) or option.name.rpartition("_")[2].upper()
    group.add_argument(option.flag, metavar=metavar, help=f"{text}; default: {default}")


def _long_option(argument: str) -> str:
    """Normalises an option: absl also accepts one dash, and here `_` equals `-`."""
    match = re.fullmatch(r"--?([A-Za-z][\w-]+)(=.*)?", argument, re.DOTALL)
    if match is None:
        return argument
    return f"--{match[1].replace('_', '-')}{match[2] or ''}"
