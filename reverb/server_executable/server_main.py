# SPDX-License-Identifier: Apache-2.0
"""The command `reverb_server`: a server in a process of its own."""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence

from reverb._server.limits import Limits
from reverb.checkpointers import DefaultCheckpointer
from reverb.server import Server
from reverb.server_executable import config_flag, server_from_proto, server_log
from reverb.server_executable.command_line import Action, CommandLine, parse_command_line
from reverb.server_executable.config_columns import columns_text
from reverb.server_executable.config_printer import config_text
from reverb.server_executable.directories import directory_problems, store_of
from reverb.server_executable.group import shard_of, shard_problems
from reverb.server_executable.reload import reload_config
from reverb.server_executable.security import (
    has_security,
    reload_security,
    security_problems,
    security_text,
    server_options,
)
from reverb.server_executable.server_life import print_start, run_until_signalled
from reverb.server_executable.server_log import print_notice
from reverb.server_executable.settings import Given, Settings, read_settings
from reverb.shown_text import without_tokens

__all__ = ["app_run_main", "main"]

_GOOD = 0
_USAGE_ERROR = 2


def main(unused_argv: Sequence[str] = ()) -> int:
    """Runs a server with the flags of absl; for `absl.app.run(main)`.

    Blocks until a signal stops it. `--config` is the only flag; other options come from environment
    variables here, and are arguments of `reverb_server`.

    Args:
      unused_argv: Arguments that absl did not read.

    Returns:
      The exit code of the process.
    """
    del unused_argv
    text = config_flag.get_server_config_text()
    return _run(parse_command_line([f"--config={text}"], os.environ))


def app_run_main() -> None:
    """Runs the command `reverb_server`, then ends the process."""
    sys.exit(_run(parse_command_line(sys.argv[1:], os.environ)))


def _run(command: CommandLine) -> int:
    given = command.given
    settings = read_settings(given)
    server_log.configure(settings["log_format"])
    problems = list(settings.problems)
    if command.action != Action.PRINT_CONFIG:
        problems += directory_problems(settings)
    if command.action == Action.CHECK:
        problems += security_problems(settings)
    problems = problems or shard_problems(settings, given)
    for line in command.notes:
        print_notice(line, "warn")
    for line in problems:
        print_notice(line, "error")
    if problems:
        return _USAGE_ERROR
    for line in settings.notes:
        print_notice(line, "warn")
    names = [it.table_name for it in settings.tables]
    if command.action == Action.CHECK:
        for line in _prospects(settings):
            print_notice(line, "warn")
        for line in _signatures(settings):
            print_notice(line)
        print(f"{without_tokens(given.source.name)} is good: tables {', '.join(names)}")
        return _GOOD
    if command.action == Action.PRINT_CONFIG:
        print(without_tokens(config_text(settings, given)), end="")
        return _GOOD
    if settings["threads"] is not None:
        os.environ["REVERB_THREADS"] = str(settings["threads"])
    return run_until_signalled(
        lambda: _start(settings),
        names,
        settings["host"],
        settings["http_host"],
        drain_timeout_s=settings["drain_timeout"],
        reload=_reloader(given, settings),
        security=lambda: security_text(settings),
        http_scheme="https" if settings["http_tls"] else "http",
    )


def _prospects(settings: Settings) -> list[str]:
    """Warnings about tables whose settings will block them for good, logged at the start.

    The tables of a shard have the bounds of their group, and are not checked.
    """
    if shard_of(settings) is not None:
        return []
    tables = server_from_proto.tables_from_proto(settings.tables)
    whys = ((table.name, table.internal_table.why_never()) for table in tables)
    return [f"table {name}: {why}" for name, why in whys if why is not None]


def _signatures(settings: Settings) -> list[str]:
    """Lines about the tables whose items are checked."""
    return [
        f"table {table.table_name}: items must have the columns {columns_text(table.signature)}; "
        "only reverb_server checks this, not other programs that read the config"
        for table in settings.tables
        if table.signature.WhichOneof("kind")
    ]


def _start(settings: Settings) -> Server:
    checkpointer = None
    if settings["checkpoint_dir"] is not None:
        checkpointer = DefaultCheckpointer(
            settings["checkpoint_dir"],
            keep_latest=settings["keep_checkpoints"],
            restore_settings=settings["restore_settings"],
            name=settings["checkpoint_name"],
            load=settings["load_checkpoint"],
        )
        checkpointer.internal_keep_signatures = True
    tables = server_from_proto.tables_from_proto(settings.tables)
    print_start(tables, settings["max_bytes"])
    return Server(
        tables,
        settings["port"],
        checkpointer,
        host=settings["host"],
        unix_path=settings["unix_path"],
        checkpoint_interval_s=settings["checkpoint_interval"],
        checkpoint_on_stop=settings["checkpoint_on_stop"],
        keepalive_s=settings["keepalive"] or None,
        keepalive_timeout_s=settings["keepalive_timeout"],
        limits=Limits(
            **{it.name: settings[f"limit_{it.name}"] for it in dataclasses.fields(Limits)}
        ),
        max_bytes=settings["max_bytes"],
        store=store_of(settings),
        http_port=settings["http_port"],
        http_host=settings["http_host"],
        shard=shard_of(settings),
        **server_options(settings),
    )


def _can_be_read_again(given: Given) -> bool:
    """Whether the config is a plain file; a pipe (`<(command)` in a shell) is empty by now."""
    return given.source.path is not None and given.source.path.is_file()


def _reloader(given: Given, settings: Settings) -> Callable[[Server], str] | None:
    """Returns a function that reloads the files, and keeps the settings of the last reload.

    `None` if there are no files.
    """
    is_file, is_secured = _can_be_read_again(given), has_security(settings)
    given = dataclasses.replace(given, source=dataclasses.replace(given.source, is_read_again=True))

    def reload(server: Server) -> str:
        nonlocal settings
        summaries = []
        # A bad file does not keep the others from being read.
        if is_file:
            done = reload_config(server, given, settings)
            settings = done.settings
            _log(done.lines, done.is_refused)
            summaries.append(done.lines[-1])
        if is_secured:
            of_security = reload_security(server)
            _log(of_security.lines, of_security.is_refused)
            summaries += of_security.lines[-1:]
        return "; ".join(summaries)

    return reload if is_file or is_secured else None


def _log(lines: Sequence[str], is_refused: bool) -> None:
    for line in lines:
        print_notice(line, "error" if is_refused else "info")


if __name__ == "__main__":
    app_run_main()
