# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/operations.md.
"""The command `reverb`: inspects and exports tables; watches, changes and secures servers."""

import argparse
import io
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from reverb import __version__
from reverb.command import (
    addresses,
    checkpoint,
    configure,
    drain,
    export,
    export_episodes,
    import_,
    inspect,
    npz,
    parquet,
    pause,
    reset,
    reshard,
    store,
    text,
    tfrecord,
    tls,
    token,
    top,
    why,
)
from reverb.command.open_source import open_source, sources_of
from reverb.command.server_arguments import (
    Commands,
    add_credentials,
    add_no_progress,
    add_timeout,
    by_options,
    credentials_of,
    option,
    size,
)
from reverb.command.several import ask_each
from reverb.command.source import Source, missing_text
from reverb.command.status_source import SERVER_DOWN
from reverb.datasets.formats import SAVED
from reverb.errors import InvalidArgumentError, ReverbError
from reverb.shown_text import without_tokens

__all__ = ["main"]

_FAILURE = 1
# The exit code of shells for a program that Ctrl-C ended.
_INTERRUPTED = 130

_SOURCE_HELP = (
    "a checkpoint, a directory of checkpoints (the latest complete one is read), those of a group, "
    f"or {addresses.HELP}"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
      argv: Arguments, without the name of the program; `None`: those of the process.

    Returns:
      The exit code: 0 on success, 1 after an error (one line on standard error) and if
      `checkpoint verify` finds damage, 130 after Ctrl-C; 3 or 4 if `why` finds waiting calls or a
      stuck table, 5 if what `why`, `top`, `inspect` or `export` show is without a server or shard
      that is down, or if some shards only have done what was asked, 3 if `drain` leaves streams
      open or `store check` finds damage, 2 if `reshard` is not given all the parts of one group. An
      invalid command line raises `SystemExit` with code 2.
    """
    if sys.stdout is None:
        # The shell has closed standard output (`>&-`).
        sys.stdout = pathlib.Path(os.devnull).open("w")  # noqa: SIM115
    arguments = _parser().parse_args(_with_one_name(sys.argv[1:] if argv is None else argv))
    _read_names_as_utf8(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names may have characters that the encoding of the output lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it. Without this, Python's flush at exit would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILURE
    except (ReverbError, OSError, UnicodeEncodeError) as error:
        shown = by_options(" ".join(str(error).split()), arguments)
        shown = text.plain(without_tokens(shown))
        print(f"reverb: error: {shown}", file=sys.stderr)
        return SERVER_DOWN if getattr(error, "is_partial", False) else _FAILURE
    return code or 0


def _with_one_name(argv: Sequence[str]) -> list[str]:
    """Joins the two words of `checkpoint list` and `checkpoint verify`.

    `checkpoint` itself takes an address, and neither word is one: those have a port or a scheme.
    """
    name = " ".join(argv[:2])
    return [name, *argv[2:]] if name in checkpoint.OF_DIRECTORIES else list(argv)


def _read_names_as_utf8(arguments: argparse.Namespace) -> None:
    """Decodes names as UTF-8, also where the locale knows only ASCII.

    Paths stay as they are, because the system accepts them in this form.
    """
    for argument in ("table", "tables", "name"):
        value = getattr(arguments, argument, None)
        if isinstance(value, str):
            setattr(arguments, argument, os.fsencode(value).decode("utf-8", "surrogateescape"))


class _Parser(argparse.ArgumentParser):
    """A parser whose errors show no token; the commands' parsers are of the same class."""

    def error(self, message: str) -> NoReturn:
        super().error(without_tokens(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="reverb", description=__doc__)
    parser.add_argument("--version", action="version", version=f"reverb {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_inspect(commands)
    _add_export(commands)
    import_.add_parser(commands)
    why.add_parser(commands)
    top.add_parser(commands)
    configure.add_parser(commands)
    pause.add_parsers(commands)
    checkpoint.add_parsers(commands)
    drain.add_parser(commands)
    reset.add_parser(commands)
    reshard.add_parser(commands)
    store.add_parser(commands)
    token.add_parser(commands)
    tls.add_parser(commands)
    return parser


def _add_inspect(commands: Commands) -> None:
    parser = commands.add_parser(
        "inspect",
        help="print a summary of tables: size, bytes, item age, priorities, signature",
        description="Prints a summary of the tables of a checkpoint or of a running server.",
        epilog="exit codes: 0; 1 an error; 5 a shard of a group, or one of several servers, does "
        "not answer, and what the others have is shown",
    )
    _add_source(parser, addresses.SEVERAL_ARE_SHOWN)
    parser.add_argument("--table", help="only this table")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--no-items", action="store_true", help="only settings and counters, without reading items"
    )
    parser.set_defaults(run=_run_inspect)


def _add_export(commands: Commands) -> None:
    parser = commands.add_parser(
        "export",
        help="write the items of a table as files, or as a dataset of another library",
        description="Writes the items of a table as files that other programs read: npz, parquet "
        "and tfrecord have any items, and the others whole episodes.",
        epilog="\n\n".join(f"{module.__doc__}" for module in (npz, parquet, tfrecord)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_source(parser, "; not several servers, unless they are a group")
    parser.add_argument("--table", required=True, help="the table to export")
    parser.add_argument("--format", required=True, choices=[*export.FORMATS, *SAVED])
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        metavar="FILE_OR_DIR",
        help="a file if the name has a suffix of the format, else a directory of files; it is put "
        "in place when the export is complete",
    )
    parser.add_argument("--max-items", type=size, metavar="N", help="the oldest N items only")
    parser.add_argument(
        "--shard-items",
        type=size,
        metavar="N",
        help="items per file in a directory (default: about 256 MiB of data)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    parser.add_argument(
        "--partial",
        action="store_true",
        help="export a running group also without the shards that do not answer; the exit code is "
        "5 then",
    )
    parser.add_argument(
        "--no-signature",
        action="store_true",
        help="name the columns column_0, column_1, ... instead of using the table's signature",
    )
    export_episodes.add_options(parser)
    parser.set_defaults(run=_run_export)


def _add_source(parser: argparse.ArgumentParser, of_several: str) -> None:
    parser.add_argument("source", metavar="PATH_OR_ADDRESS", help=_SOURCE_HELP + of_several)
    add_timeout(parser)
    add_credentials(parser)
    add_no_progress(parser)


def _run_inspect(arguments: argparse.Namespace) -> int:
    def report_of(name: str) -> dict[str, Any]:
        return inspect.inspect(
            open_source(name, arguments.timeout, partial=True, **credentials_of(arguments)),
            table=arguments.table,
            read_items=not arguments.no_items,
            progress=arguments.progress if len(names) == 1 else False,
        )

    names = sources_of(arguments.source)
    if len(names) == 1:
        report = report_of(arguments.source)
        print(inspect.as_json(report) if arguments.json else inspect.as_text(report))
        return SERVER_DOWN if report["missing_shards"] else 0
    answers = ask_each(names, report_of)
    if arguments.json:
        values = [
            {"source": name, "error": str(it)} if isinstance(it, ReverbError) else it
            for name, it in answers.items()
        ]
        print(inspect.as_json({"servers": values}))
    else:
        shown = [
            text.plain(f"server {name}: no answer: {it}")
            if isinstance(it, ReverbError)
            else inspect.as_text(it)
            for name, it in answers.items()
        ]
        print("\n\n".join(shown))
    has_all = not any(isinstance(it, ReverbError) for it in answers.values())
    return 0 if has_all else SERVER_DOWN


def _run_export(arguments: argparse.Namespace) -> int:
    if len(sources_of(arguments.source)) > 1:
        addresses.one_server(arguments.source, "export")
    is_of_episodes = arguments.format in SAVED
    if arguments.output is None and not is_of_episodes:
        raise InvalidArgumentError(f"--output is needed for --format {arguments.format}")
    if is_of_episodes:
        _refuse(arguments, "shard_items", "overwrite", "no_signature")
    else:
        _refuse(arguments, "dataset_id", *export_episodes.OPTIONS)
    source = open_source(
        arguments.source,
        arguments.timeout,
        partial=arguments.partial,
        **credentials_of(arguments),
    )
    (_export_episodes if is_of_episodes else _export_items)(arguments, source)
    if not source.missing:
        return 0
    print(missing_text(source.missing))
    return SERVER_DOWN


def _export_items(arguments: argparse.Namespace, source: Source) -> None:
    num_items, path = export.export(
        source,
        arguments.table,
        arguments.format,
        arguments.output,
        max_items=arguments.max_items,
        shard_items=arguments.shard_items,
        overwrite=arguments.overwrite,
        use_signature=not arguments.no_signature,
        progress=arguments.progress,
    )
    print(f"{num_items} items of table {arguments.table} in {path}")


def _export_episodes(arguments: argparse.Namespace, source: Source) -> None:
    count, target = export_episodes.export_episodes(source, arguments)
    print(text.plain(f"{count} episodes of table {arguments.table} in {target}"))


def _refuse(arguments: argparse.Namespace, *names: str) -> None:
    """Refuses options that the format of an export does not have."""
    for name in names:
        if getattr(arguments, name) not in (None, False):
            raise InvalidArgumentError(f"{option(name)} is not for --format {arguments.format}")
