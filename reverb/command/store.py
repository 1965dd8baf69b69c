# SPDX-License-Identifier: Apache-2.0
"""`reverb store`: checks and repairs the journal of a stopped server."""

import argparse
import json
import pathlib
import shlex
import time
from typing import Any

from reverb._checks.byte_sizes import parse_byte_size_on_disk
from reverb.command import text
from reverb.command.server_arguments import Commands
from reverb.core import native

_DAMAGED = 3

_DEFAULT_RATE = "200MB"
_FILES = ("data files", "logs", "bases")
_PLACE = ("index", "num_shards", "group")
# Reasons that are shown for a table.
_MOST_REASONS = 5


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "store",
        help="check or repair the journal of a stopped server",
        description="Checks or repairs what a server with a journal has left in the directory of "
        "its store. The server must not run.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="read all that a start and later samples need",
        description="Reads all that a start and later samples need, compares it with its "
        "checksums, and says what is in the journal. Changes nothing.",
        epilog="exit codes: 0 it is whole; 3 it is damaged; 1 an error, also if nothing can be "
        "read",
    )
    check.set_defaults(run=_check)
    repair = actions.add_parser(
        "repair",
        help="keep what is before the damage, so that the server can start",
        description="Makes a damaged journal one with which a server starts, and says what that "
        "loses. It keeps what is before the damage, without the items of which a part is missing "
        "or wrong. Logs and bases that were there are moved to DIR/before-repair-<time>. Does "
        "nothing to a journal that is whole.",
        epilog="exit codes: 0 a server can start with it; 1 an error, also if nothing can be kept",
    )
    repair.set_defaults(run=_repair)
    for action in (check, repair):
        action.add_argument("directory", type=pathlib.Path, metavar="DIR")
        action.add_argument(
            "--max-rate",
            default=_DEFAULT_RATE,
            metavar="SIZE",
            help="bytes that are read in a second, at most (default: %(default)s)",
        )
        action.add_argument("--json", action="store_true", help="print JSON, for programs")


def _check(arguments: argparse.Namespace) -> int:
    report = _examine(arguments, repairs=False)
    return _DAMAGED if report["is_damaged"] else 0


def _repair(arguments: argparse.Namespace) -> int:
    report = _examine(arguments, repairs=True)
    return int(report["is_damaged"] and not _has_items(report))


def _has_items(report: dict[str, Any]) -> bool:
    return any(table["num_items"] for table in report["tables"].values())


def _examine(arguments: argparse.Namespace, *, repairs: bool) -> dict[str, Any]:
    rate = parse_byte_size_on_disk("--max-rate", arguments.max_rate)
    assert rate is not None  # It has a default.
    found = native.examine_store(arguments.directory, repairs, rate)
    files = [{"count": count, "bytes": size} for count, size in found["files"]]
    damage, num_records = found.pop("damage") or (None, 0)
    moved_to = found["moved_to"]
    report = found | {
        "store": str(arguments.directory),
        "files": dict(zip(_FILES, files, strict=True)),
        "tables": {
            name: {"num_items": num_items, "lost": dict(lost)}
            for name, num_items, lost in found["tables"]
        },
        "notes": [
            {"at": at, "client": client, "note": note.decode(errors="backslashreplace")}
            for at, client, note in found["notes"]
        ],
        "shard": found["shard"] and dict(zip(_PLACE, found["shard"], strict=True)),
        "damage": damage,
        "num_lost_records": num_records,
        "moved_to": None if moved_to is None else str(moved_to),
    }
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(_lines(report)))
    return report


def _lines(report: dict[str, Any]) -> list[str]:
    tables, at = report["tables"], text.moment(report["at"], time.time())
    lines = [f"store {text.plain(report['store'])}, commit {report['commit']:,} of {at}"]
    if shard := report["shard"]:
        place = "shard {index} of {num_shards} of group '{group}'".format_map(shard)
        lines.append(f"  {text.plain(place)}")
    for name, files in report["files"].items():
        garbage = f", {text.bytes_(report['garbage_bytes'])} of it garbage"
        rest = garbage if name == _FILES[0] else ""
        lines.append(f"  {name:<12}{files['count']:,}, {text.bytes_(files['bytes'])}{rest}")
    lines += [
        f"  table {text.plain(it)}: {table['num_items']:,} items" for it, table in tables.items()
    ]
    lines += [
        text.plain(f"  note of {it['client']}, {text.moment(it['at'], time.time())}: {it['note']}")
        for it in report["notes"]
    ]
    if report["unfinished_bytes"]:
        lines.append(f"  {text.bytes_(report['unfinished_bytes'])} of an unfinished commit")
    lines += [text.plain(f"{it}; the base before is as good") for it in report["damaged_bases"]]
    return lines + _damage_lines(report)


def _damage_lines(report: dict[str, Any]) -> list[str]:
    if not report["is_damaged"]:
        if report["unfinished_bytes"]:
            return ["It is whole, but for an unfinished commit, as a crash leaves it."]
        return ["It is whole."]
    lines = []
    if report["damage"] is not None:
        since = text.moment(report["at"], time.time())
        lines.append(text.plain(f"Damage: {report['damage']}."))
        if report["num_lost_records"]:
            count = report["num_lost_records"]
            lines.append(f"Items and updates since {since} are lost, about {count:,}.")
    for name, table in report["tables"].items():
        reasons = list(table["lost"].items())
        if reasons:
            count = sum(table["lost"].values())
            lines.append(
                f"Of table {text.plain(name)}, {text.plural(count, 'item')} cannot be kept:"
            )
            shown = [f"  {count:,} for {why}" for why, count in reasons[:_MOST_REASONS]]
            lines += map(text.plain, shown)
            if len(reasons) > _MOST_REASONS:
                lines.append(f"  and others for {len(reasons) - _MOST_REASONS:,} more reasons")
    if report["moved_to"] is None:
        return [*lines, f"Keep the rest by: reverb store repair {shlex.quote(report['store'])}"]
    moved_to = text.plain(report["moved_to"])
    kept = "" if _has_items(report) else ", without any item"
    done = f"Repaired: a server can start{kept}. The logs and bases of before are in {moved_to}"
    return [*lines, done]
