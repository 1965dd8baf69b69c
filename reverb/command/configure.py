# SPDX-License-Identifier: Apache-2.0
"""`reverb configure`: changes settings of a table of a running server."""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from reverb._checks.byte_sizes import parse_byte_size
from reverb._rollouts.settings import Rollouts
from reverb._server.table_change import UNCHANGED, ChangedSetting, TableChange
from reverb.command import text
from reverb.command.reset import confirmed
from reverb.command.server_arguments import (
    Commands,
    add_address,
    add_table,
    add_timeout,
    client_of,
    integer,
    option,
    size,
)
from reverb.command.source import table_of
from reverb.errors import InvalidArgumentError
from reverb.item_selectors import Prioritized, Recent, selector_settings
from reverb.rate_limiters import MinSize, Queue, RateLimiter, SampleToInsertRatio
from reverb.reverb_types import TableInfo

_NOT_DONE = 1
_NONE = "none"
# The bounds of a limiter that has no bounds.
_NO_MIN_DIFF, _NO_MAX_DIFF = -sys.float_info.max, sys.float_info.max
_N = TypeVar("_N", int, float)

# Asks for the present settings of the table, once.
_Present = Callable[[], TableInfo]

_LIMITER_NUMBERS = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")
# Settings that have an option of the same name. The others have several.
_PLAIN = [
    field.name
    for field in dataclasses.fields(TableChange)
    if field.name not in ("rate_limiter", "sampler", "rollouts")
]
_SETTINGS = (*_PLAIN, "draw", "expected_age", *_LIMITER_NUMBERS, "error_buffer", "queue_size")
# Settings of rollouts that may be absent; then what they are.
_OPTIONAL_OF_ROLLOUTS = {
    "min_rollouts": ("N", "how many final rollouts are enough when others failed; none: all"),
    "ahead": ("N", "batches that generators may be ahead; none: as --max-staleness"),
    "items_per_version": ("N", "items that the learner takes for each version; none: no backlog"),
    "max_staleness": ("N", "versions that an item may be behind; none: any number"),
    "open_timeout_s": ("S", "how long one client may hold an open item; none: any time"),
}
_OF_ROLLOUTS = (*_OPTIONAL_OF_ROLLOUTS, "on_stale", "max_attempts")


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "configure",
        help="change settings of a table of a running server",
        description="Changes settings of a table while its server runs: all that are given, or "
        "none. What is not given stays as it is.",
        epilog="exit codes: 0 the table has these settings; 1 an error, or the answer was no; 2 "
        "the command line cannot be used. After a restart a table has the settings of the program "
        "or config that makes it.",
    )
    add_address(parser)
    add_table(parser, "the table to change")
    parser.add_argument(
        "--max-size",
        type=integer,
        metavar="N",
        help="maximum number of items",
    )
    parser.add_argument(
        "--max-bytes",
        type=_byte_size,
        default=UNCHANGED,
        metavar="SIZE",
        help="memory of the table, for example 4GiB; none: no limit",
    )
    parser.add_argument(
        "--max-times-sampled",
        type=integer,
        metavar="N",
        help="number of samples after which an item is removed; 0: no limit",
    )
    parser.add_argument(
        "--priority-exponent", type=float, metavar="X", help="of a prioritized sampler"
    )
    parser.add_argument(
        "--draw",
        choices=("independent", "stratified", "systematic"),
        help="of a prioritized sampler, how the items of a request depend on each other",
    )
    parser.add_argument(
        "--expected-age", type=float, metavar="X", help="of a sampler of recent items, in items"
    )
    _add_limiter(parser)
    _add_rollouts(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would change")
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask before unread items of a queue are dropped, for scripts",
    )
    add_timeout(parser)
    parser.set_defaults(run=_run, parser=parser)


def _add_limiter(parser: argparse.ArgumentParser) -> None:
    limiter = parser.add_argument_group(
        "rate limiter",
        "Each of the first four options changes one number of the present limiter.",
    )
    limiter.add_argument("--samples-per-insert", type=float, metavar="X")
    limiter.add_argument(
        "--min-size-to-sample", type=integer, metavar="N", help="samples wait for so many items"
    )
    limiter.add_argument(
        "--min-diff",
        type=_min_diff,
        metavar="X",
        help="samples wait at this lower bound of inserts * samples_per_insert - samples; none: no "
        "bound (for a negative number write --min-diff=-5)",
    )
    limiter.add_argument(
        "--max-diff",
        type=_max_diff,
        metavar="X",
        help="inserts wait at this upper bound; none: no bound",
    )
    limiter.add_argument(
        "--error-buffer",
        type=float,
        metavar="X",
        help="in place of both bounds, the distance of each from samples_per_insert * "
        "min_size_to_sample, as in SampleToInsertRatio",
    )
    limiter.add_argument(
        "--no-ratio",
        action="store_true",
        help="inserts never wait, and samples only for --min-size-to-sample, as in MinSize",
    )
    limiter.add_argument(
        "--queue-size",
        type=size,
        metavar="N",
        help="every item is sampled once, and inserts wait for room, as in Queue and Stack",
    )


def _add_rollouts(parser: argparse.ArgumentParser) -> None:
    rollouts = parser.add_argument_group(
        "rollouts", "Each option changes one setting of a table with rollouts."
    )
    for name, (metavar, meaning) in _OPTIONAL_OF_ROLLOUTS.items():
        rollouts.add_argument(
            option(name),
            type=_seconds if name == "open_timeout_s" else _number,
            default=UNCHANGED,
            metavar=metavar,
            help=meaning,
        )
    rollouts.add_argument(
        "--on-stale",
        choices=("again", "keep", "wait"),
        default=UNCHANGED,
        help="whether a staler item is made again, stays, or learners wait for old ones",
    )
    rollouts.add_argument(
        "--max-attempts",
        type=integer,
        default=UNCHANGED,
        metavar="N",
        help="how often an item may be lost or become stale before it leaves",
    )


def _number(value: str) -> int | None:
    return None if value == _NONE else integer(value)


def _seconds(value: str) -> float | None:
    return None if value == _NONE else float(value)


def _byte_size(value: str) -> int | None:
    if value == _NONE:
        return None
    try:
        return parse_byte_size("it", int(value) if value.isdecimal() else value)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("it ")) from None


def _min_diff(value: str) -> float:
    return _NO_MIN_DIFF if value == _NONE else float(value)


def _max_diff(value: str) -> float:
    return _NO_MAX_DIFF if value == _NONE else float(value)


def _run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    client = client_of(arguments, "configure")
    present: _Present = functools.cache(lambda: table_of(client, arguments.table))
    if not _may_drop(arguments, present):
        print("nothing was changed")
        return _NOT_DONE
    limiter = _limiter(arguments, present) if _changes_limiter(arguments) else None
    sampler = _sampler(arguments, present)
    plain = {name: getattr(arguments, name) for name in _PLAIN}
    if sampler is not None:
        # It has the exponent.
        plain["priority_exponent"] = None
    rollouts = _rollouts(arguments, present)
    change = TableChange(rate_limiter=limiter, sampler=sampler, rollouts=rollouts, **plain)
    changed = client.configure_tables({arguments.table: change}, dry_run=arguments.dry_run)
    for it in changed:
        print(text.plain(_would_be(it) if arguments.dry_run else str(it)))
    if not changed:
        print("nothing to change")
    return 0


def _may_drop(arguments: argparse.Namespace, present: _Present) -> bool:
    """Whether unread items may be dropped, if a smaller queue has no room for them.

    Items of a queue leave when they are read, so all its items are unread.
    """
    if arguments.max_size is None:
        return True
    info = present()
    count = info.current_size - arguments.max_size
    if info.max_times_sampled != 1 or count <= 0:
        return True
    items = f"{text.number(count)} unread item{'' if count == 1 else 's'}"
    shown = f"{items} of table {text.plain(arguments.table)} would be lost"
    if arguments.dry_run:
        print(shown)
        return True
    return arguments.yes or confirmed(f"{shown}. Make it smaller?")


def _sampler(arguments: argparse.Namespace, present: _Present) -> Prioritized | Recent | None:
    """The sampler with its new parameters; `None` if they do not change."""
    if arguments.expected_age is not None:
        return Recent(arguments.expected_age)
    if arguments.draw is None:
        return None
    exponent = arguments.priority_exponent
    if exponent is None:
        kind, parameters = selector_settings(present().sampler_options)
        if kind != "prioritized":
            raise InvalidArgumentError(
                f"--draw needs a prioritized sampler, which table {arguments.table} does not have"
            )
        exponent = parameters["priority_exponent"]
    return Prioritized(exponent, draw=arguments.draw)


def _rollouts(arguments: argparse.Namespace, present: _Present) -> Rollouts | None:
    """The settings of rollouts, of which some change; `None` if none does."""
    given = {name: getattr(arguments, name) for name in _OF_ROLLOUTS}
    given = {name: value for name, value in given.items() if value is not UNCHANGED}
    if not given:
        return None
    rollouts = present().rollouts
    if rollouts is None:
        raise InvalidArgumentError(
            f"{option(next(iter(given)))} needs a table with rollouts, and {arguments.table} has "
            "none"
        )
    return dataclasses.replace(rollouts.settings, **given)


def _would_be(changed: ChangedSetting) -> str:
    it = changed
    return f"{it.setting} of table {it.table} would be {it.after}, not {it.before}"


def _check(arguments: argparse.Namespace) -> None:
    """Ends the program if there is nothing to change, or if options exclude each other."""
    given = {name for name in _SETTINGS if getattr(arguments, name) not in (None, UNCHANGED)}
    if arguments.max_bytes is None:
        given.add("max_bytes")
    if arguments.no_ratio:
        given.add("no_ratio")
    given |= {name for name in _OF_ROLLOUTS if getattr(arguments, name) is not UNCHANGED}
    if not given:
        arguments.parser.error("nothing to change: give at least one setting, such as --max-size")
    excluded = {
        "error_buffer": {"min_diff", "max_diff"},
        "no_ratio": {"samples_per_insert", "min_diff", "max_diff", "error_buffer", "queue_size"},
        "queue_size": {*_LIMITER_NUMBERS, "error_buffer"},
        "expected_age": {"priority_exponent", "draw"},
    }
    for name, others in excluded.items():
        if name in given and (both := sorted(others & given)):
            arguments.parser.error(f"{option(name)} and {option(both[0])} exclude each other")


def _changes_limiter(arguments: argparse.Namespace) -> bool:
    names = (*_LIMITER_NUMBERS, "error_buffer", "queue_size")
    return arguments.no_ratio or any(getattr(arguments, name) is not None for name in names)


def _limiter(arguments: argparse.Namespace, table: _Present) -> RateLimiter:
    """The new limiter: the given numbers, and otherwise those of the present limiter."""
    if arguments.queue_size is not None:
        return Queue(arguments.queue_size)
    present: Any = table().rate_limiter_info
    min_size = _either(arguments.min_size_to_sample, present.min_size_to_sample)
    if arguments.no_ratio:
        return MinSize(min_size)
    ratio = _either(arguments.samples_per_insert, present.samples_per_insert)
    if arguments.error_buffer is not None:
        return SampleToInsertRatio(ratio, min_size, arguments.error_buffer)
    return _with_bounds(arguments, present, ratio, min_size)


def _with_bounds(
    arguments: argparse.Namespace, present: Any, ratio: float, min_size: int
) -> RateLimiter:
    min_diff = _either(arguments.min_diff, present.min_diff)
    max_diff = _either(arguments.max_diff, present.max_diff)
    limiter = RateLimiter(ratio, min_size, min_diff, max_diff)
    given = (arguments.samples_per_insert, arguments.min_diff, arguments.max_diff)
    if given != (None, None, None) and max_diff - min_diff < max(1.0, ratio):
        raise InvalidArgumentError(
            f"max_diff {max_diff:g} must be at least max(1, samples_per_insert) = "
            f"{max(1.0, ratio):g} above min_diff {min_diff:g}: else inserts and samples would wait "
            "for each other. Give --error-buffer, or other bounds"
        )
    return limiter


def _either(given: _N | None, present: _N) -> _N:
    return present if given is None else given
