# SPDX-License-Identifier: Apache-2.0
"""`reverb pause` and `reverb resume`: pause or resume inserts and samples of a table."""

import argparse

from reverb.command import text
from reverb.command.server_arguments import Commands, add_address, add_table, add_timeout, client_of


def add_parsers(commands: Commands) -> None:
    """Adds both commands."""
    pause = commands.add_parser(
        "pause",
        help="pause inserts and samples of a table",
        description="Pauses inserts and samples of a table until `reverb resume`. Updates, "
        "deletes and resets continue. A pause ends with the server.",
    )
    _add_arguments(pause)
    pause.set_defaults(run=_pause)
    resume = commands.add_parser(
        "resume",
        help="resume inserts and samples of a table",
        description="Resumes inserts and samples of a table, no matter which client paused them.",
    )
    _add_arguments(resume)
    resume.set_defaults(run=_resume)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_address(parser)
    add_table(parser, "the table")
    parser.add_argument("--inserts", action="store_true", help="only inserts")
    parser.add_argument("--samples", action="store_true", help="only samples")
    add_timeout(parser)


def _pause(arguments: argparse.Namespace) -> None:
    inserts, samples = _sides(arguments)
    client_of(arguments, "pause").pause_table(arguments.table, inserts=inserts, samples=samples)
    print(f"{_named(inserts, samples)} of table {text.plain(arguments.table)} are paused")


def _resume(arguments: argparse.Namespace) -> None:
    inserts, samples = _sides(arguments)
    client_of(arguments, "resume").resume_table(arguments.table, inserts=inserts, samples=samples)
    print(f"{_named(inserts, samples)} of table {text.plain(arguments.table)} continue")


def _sides(arguments: argparse.Namespace) -> tuple[bool, bool]:
    """Whether the command is about inserts, and about samples; without an option both."""
    both = arguments.inserts == arguments.samples
    return arguments.inserts or both, arguments.samples or both


def _named(inserts: bool, samples: bool) -> str:
    sides = [name for name, meant in (("inserts", inserts), ("samples", samples)) if meant]
    return " and ".join(sides)
