# SPDX-License-Identifier: Apache-2.0
"""`reverb checkpoint`: makes a running server save now; lists and verifies what was saved."""

import argparse
import pathlib
import time

from reverb._checkpoints.stored import Checkpoint, read
from reverb.command import text
from reverb.command.progress import Progress
from reverb.command.server_arguments import (
    Commands,
    add_address,
    add_no_progress,
    add_timeout,
    client_of,
)
from reverb.errors import DataLossError, FailedPreconditionError, ReverbError

# The commands that read directories; all others of this name have an address.
OF_DIRECTORIES = _LIST, _VERIFY = ("checkpoint list", "checkpoint verify")

_DONE = "DONE"
_FOUND_BY = (_DONE, "tables.tfrecord")


def add_parsers(commands: Commands) -> None:
    """Adds the commands."""
    parser = commands.add_parser(
        "checkpoint",
        help="make a server save its tables now",
        description="Makes a server, or all shards of a group, save the tables now, and waits "
        "until the checkpoint is on disk; inserts and samples continue meanwhile. Prints the path "
        "on the server, the size and the duration. `reverb checkpoint list DIR` and `reverb "
        "checkpoint verify DIR` read what was saved, without a server.",
        epilog="exit codes: 0 it is saved; 1 an error; 5 some shards of a group saved, and the "
        "error names them and the others. After Ctrl-C the server continues to save.",
    )
    add_address(parser)
    add_timeout(parser)
    parser.set_defaults(run=_run)
    listing = commands.add_parser(
        _LIST,
        help="list the checkpoints in a directory",
        description="Lists the checkpoints in a directory, or in those of the shards of a group: "
        "name, size, tables, items, server, and which one a start loads (latest). Reads no items.",
        epilog="exit codes: 0; 1 an error, also if there is no checkpoint",
    )
    listing.set_defaults(run=_run_list)
    verify = commands.add_parser(
        _VERIFY,
        help="read checkpoints, and say where one is damaged",
        description="Reads the complete checkpoints in a directory, or one of them: all that is "
        "stored, its checksums, and the chunks of each item. Says where the first damage is.",
        epilog="exit codes: 0 all are whole; 1 one is damaged, or an error, also if there is none",
    )
    verify.set_defaults(run=_run_verify)
    add_no_progress(verify)
    for parser in (listing, verify):
        parser.add_argument("directory", type=pathlib.Path, metavar="DIR")


def _run(arguments: argparse.Namespace) -> None:
    client = client_of(arguments, "checkpoint")
    begin = time.monotonic()
    path = client.checkpoint()
    took = time.monotonic() - begin
    status = client.checkpoint_status()
    # The status may be of a later save.
    size = f", {text.bytes_(status.latest_bytes)}" if status.latest_path == path else ""
    print(f"saved {text.plain(path)}{size} in {text.interval(took)}")


def _run_list(arguments: argparse.Namespace) -> None:
    latest: dict[tuple[pathlib.Path, str | None], str] = {}
    lines: dict[str, list[str]] = {}
    for name, path in _found(arguments.directory):
        if not (path / _DONE).exists():
            lines[name] = ["not complete: no start loads it"]
            continue
        try:
            saved = read(path)
            latest[path.parent, saved.server_name] = name
            lines[name] = _facts(saved)
        except ReverbError as error:
            # A start takes none before it.
            latest = {key: it for key, it in latest.items() if key[0] != path.parent}
            lines[name] = [str(error)]
    for name, facts in lines.items():
        facts += ["latest"] if name in latest.values() else []
        print(text.plain(f"{name}: {', '.join(facts)}"))


def _facts(saved: Checkpoint) -> list[str]:
    """What is known without reading items."""
    counts = [f"{info.current_size:,} items of {name}" for name, info in saved.tables.items()]
    of_server = [] if saved.server_name is None else [f"server {saved.server_name}"]
    of_group = [] if saved.place is None else ["shard {1} of {2} of group {0}".format(*saved.place)]
    at = [] if saved.taken_at is None else [text.moment(saved.taken_at, time.time())]
    in_use = ["in use by a running server"] if saved._stored.is_in_use() else []
    return [*at, text.bytes_(saved._stored.num_bytes()), *counts, *of_server, *of_group, *in_use]


def _run_verify(arguments: argparse.Namespace) -> int:
    found = [(name, it) for name, it in _found(arguments.directory) if (it / _DONE).exists()]
    if not found:
        raise FailedPreconditionError(f"{arguments.directory} has no complete checkpoint")
    is_damaged = False
    for name, path in found:
        try:
            with Progress(name, enabled=arguments.progress) as bar:
                saved = read(path)
                tables = saved.statistics(bar).values()
            size = text.bytes_(saved._stored.num_bytes())
            shown = f"whole, {size}, {sum(it.num_items for it in tables):,} items"
        except DataLossError as error:
            is_damaged = True
            shown = str(error)
        except FailedPreconditionError:
            if (path / _DONE).exists():
                raise
            shown = "deleted meanwhile, as by a server that saves"
        print(text.plain(f"{name}: {shown}"))
    return int(is_damaged)


def _found(root: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
    """The checkpoints at or in a directory, complete or not, in the order of their names."""
    if (root / _DONE).exists():
        return [(root.absolute().name, root)]
    # Those of a group lie in the directories of its shards.
    depths = ("*", "*/*")
    paths = {
        it.parent for depth in depths for name in _FOUND_BY for it in root.glob(f"{depth}/{name}")
    }
    if not paths:
        raise FailedPreconditionError(f"{root} is no directory with checkpoints")
    return [(str(path.relative_to(root)), path) for path in sorted(paths)]
