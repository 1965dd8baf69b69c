# SPDX-License-Identifier: Apache-2.0
"""`reverb import`: writes the episodes of a dataset into a table."""

import argparse
import functools
import operator
import re

import tree

from reverb import datasets, specs
from reverb._recording.items import Items
from reverb.client import Client
from reverb.command import text
from reverb.command.progress import Progress
from reverb.command.server_arguments import (
    Commands,
    add_address,
    add_no_progress,
    add_table,
    add_timeout,
    client_of,
    option,
)
from reverb.datasets.formats import FORMATS
from reverb.errors import InvalidArgumentError, ReverbError

# Options of the command by the names that errors of the package have for them.
_BY_NAME = {
    'unfinished="truncate"': "--unfinished truncate",
    "pass resume=False": "give --no-resume",
    "pass a larger max_length": "give a larger --max-length",
    "more than max_bytes": "more than --max-bytes",
    "pass a larger max_bytes": "give a larger --max-bytes",
    'known_by="number"': "--known-by number",
    'known_by="key"': "--known-by key",
    'changed="keep"': "--changed keep",
    'changed="replace"': "--changed replace",
    'long_episodes="drop"': "--long-episodes drop",
    "(reverb.datasets.signature, or episode_ids=True without a signature)": (
        "(reverb.datasets.signature, or --episode-ids without a signature)"
    ),
}
_LEAVE_OUT = re.compile(r"leave_out=\('(.*?)',\)")


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    lines = [f"  {f'{name}:{it.dataset}':<18}  {it.help}" for name, it in FORMATS.items()]
    splits = " and ".join(name for name, it in FORMATS.items() if it.has_splits)
    parser = commands.add_parser(
        "import",
        help="write the episodes of a dataset into a table",
        description="Writes the episodes of a dataset into a table, as transitions, sequences or "
        "whole episodes. During the import the rate limiter is off for inserts. A second import "
        "of a dataset writes what is missing, if the table has the column episode_id.",
        epilog="\n".join(["sources:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="the dataset: a format and a path or id")
    add_address(parser)
    add_table(parser, "the table to write to")
    add_timeout(parser)
    parser.add_argument("--items", required=True, choices=["transitions", "sequences", "episodes"])
    made = parser.add_argument_group("items")
    made.add_argument("--discount", type=float, metavar="X", help="discount of a step (0.99)")
    made.add_argument("--n-step", type=int, metavar="N", help="steps of a transition (1)")
    made.add_argument("--length", type=int, metavar="N", help="steps of a sequence to learn from")
    made.add_argument("--stride", type=int, metavar="N", help="steps between sequences (length)")
    made.add_argument("--burn-in", type=int, metavar="N", help="steps before these (0)")
    made.add_argument(
        "--short-episodes", choices=["drop", "keep"], help="of fewer steps than a sequence (drop)"
    )
    made.add_argument(
        "--max-length", type=int, metavar="N", help="largest number of steps of an episode (10**6)"
    )
    made.add_argument("--long-episodes", choices=["raise", "drop"], help="longer ones (raise)")
    made.add_argument("--priority", default="1.0", help='a number, or "max" (default: %(default)s)')
    read = parser.add_argument_group("reading")
    read.add_argument(
        "--skip", type=int, default=0, metavar="N", help="leave out the first N episodes"
    )
    read.add_argument("--limit", type=int, metavar="N", help="read N episodes at most")
    read.add_argument(
        "--unfinished",
        choices=["error", "truncate", "drop"],
        default="error",
        help="episodes without an end (default: %(default)s)",
    )
    read.add_argument(
        "--max-bytes",
        default="1GiB",
        metavar="SIZE",
        help="largest size of an episode, and of a row group or record (default: %(default)s)",
    )
    read.add_argument("--split", metavar="NAME", help=f"the split, for {splits}")
    read.add_argument(
        "--source-id",
        metavar="ID",
        help="what episode_id is made of, if the path may change",
    )
    parser.add_argument(
        "--leave-out",
        action="append",
        default=[],
        metavar="FIELD",
        help="a field that the table does not get, such as an info or observation/image; infos: "
        "all infos that it has no column for",
    )
    parser.add_argument(
        "--episode-ids",
        action="store_true",
        help="write the column episode_id also where the table has no signature, so that a second "
        "import continues where the first one was cut off",
    )
    parser.add_argument(
        "--no-resume", action="store_true", help="write all, also episodes that the table has"
    )
    parser.add_argument(
        "--known-by",
        choices=["key", "number"],
        help="what identifies episodes of several files: file and number in it (key), or their "
        "number in all files, as in tables that older versions filled",
    )
    parser.add_argument(
        "--changed",
        choices=["error", "keep", "replace"],
        default="error",
        help="episodes of which the table has other values, or that it has by the name of a file "
        "that was renamed: it keeps what it has, or gets the new ones (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-limiter",
        action="store_true",
        help="leave the rate limiter on, which is off otherwise and needs the right admin for it",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="read and check everything, show the columns and count the items, write nothing",
    )
    add_no_progress(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    try:
        _import(arguments)
    except ReverbError as error:
        message = str(error)
        for name, option in _BY_NAME.items():
            message = message.replace(name, option)
        message = _LEAVE_OUT.sub(r"--leave-out \1", message)
        if message == str(error):
            raise
        raise type(error)(message) from None


def _import(arguments: argparse.Namespace) -> None:
    items = _items(arguments)
    read = functools.partial(
        datasets.episodes,
        arguments.source,
        unfinished=arguments.unfinished,
        leave_out=arguments.leave_out,
        source_id=arguments.source_id,
        split=arguments.split,
        max_bytes=arguments.max_bytes,
        max_length=_max_length(items),
    )
    client = client_of(arguments, "import")
    episodes = read(skip=arguments.skip, limit=arguments.limit)
    if arguments.dry_run:
        _show_columns(
            client, arguments, items, next(iter(read(skip=arguments.skip, limit=1)), None)
        )
    total = operator.length_hint(episodes)
    with Progress("importing", enabled=arguments.progress, noun="episodes") as bar:
        counts = datasets.write(
            client,
            arguments.table,
            episodes,
            items,
            priority=arguments.priority,
            leave_out=arguments.leave_out,
            episode_ids=arguments.episode_ids or None,
            resume=not arguments.no_resume,
            known_by=arguments.known_by,
            changed=arguments.changed,
            keep_limiter=arguments.keep_limiter,
            dry_run=arguments.dry_run,
            progress=lambda it: bar(_num_read(it), total),
        )
    print(text.plain(_summary(counts, arguments)))
    after = client.server_info()[arguments.table]
    surplus = after.current_size + counts.num_items - after.max_size
    if arguments.dry_run and surplus > 0:
        print(f"the table holds at most {after.max_size} items: {surplus} would be removed")
    elif after.current_size >= after.max_size:
        print(f"the table is full with {after.max_size} items: further inserts remove items")


def _items(arguments: argparse.Namespace) -> Items:
    """Makes the kind of items.

    Raises:
      InvalidArgumentError: If an option belongs to another kind, or is out of its range.
    """
    classes = {
        "transitions": (datasets.Transitions, ("n_step", "discount"), {}),
        "sequences": (
            datasets.Sequences,
            ("length", "stride", "burn_in", "short_episodes", "discount"),
            {},
        ),
        "episodes": (
            datasets.Episodes,
            ("max_length", "long_episodes", "discount"),
            {"max_length": 10**6},
        ),
    }
    cls, own, defaults = classes[arguments.items]
    all_options = {name for _, names, _ in classes.values() for name in names}
    given = {name for name in all_options if getattr(arguments, name) is not None}
    for name in sorted(given - set(own)):
        raise InvalidArgumentError(
            f"{option(name)} is not for --items {arguments.items}; that has "
            + ", ".join(map(option, own))
        )
    if cls is datasets.Sequences and arguments.length is None:
        raise InvalidArgumentError("--items sequences needs --length")
    return cls(**{**defaults, **{name: getattr(arguments, name) for name in own if name in given}})


def _max_length(items: object) -> int | None:
    """The steps of an episode above which it need not be read, because it is an error."""
    if isinstance(items, datasets.Episodes) and items.long_episodes == "raise":
        return items.max_length
    return None


def _show_columns(
    client: Client, arguments: argparse.Namespace, items: Items, first: datasets.Episode | None
) -> None:
    """Prints the columns of the items beside those of the table."""
    info = client.server_info().get(arguments.table)
    if info is None or first is None:
        return  # The import itself reports it.
    table = _columns(info.signature) if info.signature is not None else {}
    made = _columns(datasets.signature(first, items, leave_out=arguments.leave_out))
    rows = [("column", "items", f"table {arguments.table}")]
    for name in [*made, *(it for it in table if it not in made)]:
        has_none = "-" if info.signature is not None else "any"
        if name == "episode_id" and name not in table and not arguments.episode_ids:
            continue
        if name == "values_digest" and name not in table:
            continue
        rows.append((name, made.get(name, "-"), table.get(name, has_none)))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for name, own, theirs in rows:
        print(text.plain(f"{name:<{widths[0]}}  {own:<{widths[1]}}  {theirs}"))
    print(text.plain(f"items in the table: {info.current_size:,} of {info.max_size:,}"))


def _columns(signature: object) -> dict[str, str]:
    columns = {}
    for path, leaf in tree.flatten_with_path(signature):
        spec = specs.as_spec(leaf)  # Where TensorFlow is imported, `leaf` is one of its specs.
        shape = ["T" if size is None else str(size) for size in spec.shape or ()]
        columns["/".join(map(str, path))] = f"{spec.dtype} [{', '.join(shape)}]"
    return columns


def _num_read(counts: datasets.Written) -> int:
    return counts.num_episodes + counts.num_present + counts.num_dropped


def _summary(counts: datasets.Written, arguments: argparse.Namespace) -> str:
    verb = "would be written" if arguments.dry_run else "written"
    parts = [
        f"{counts.num_items} items of {counts.num_episodes} episodes ({counts.num_steps} steps) "
        f"{verb} to table {arguments.table}"
    ]
    if counts.num_present:
        parts.append(f"{counts.num_present} episodes were there already")
        if not counts.num_episodes:
            parts.append(
                "their items keep the --n-step and --discount of their import; for others, empty "
                "the table by `reverb reset` first"
            )
    if counts.num_repaired:
        parts.append(f"{counts.num_repaired} were incomplete, and were written again")
    if counts.num_changed:
        what = "were kept" if arguments.changed == "keep" else "were replaced"
        parts.append(f"{counts.num_changed} had changed or moved, and the old ones {what}")
    if counts.num_dropped:
        parts.append(f"{counts.num_dropped} were left out because of their length")
    return "; ".join(parts)
