# SPDX-License-Identifier: Apache-2.0
"""What a server is told to be: a `ReverbServerConfig` in text form, and all that is wrong with it.

The rules are those of `Table` and of the rate limiters. They are checked before anything is made,
so that every fault is named at once, each with its line.
"""

import bisect
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from google.protobuf import text_format

from reverb.core import protos
from reverb.errors import ReverbError
from reverb.server import MAX_PORT
from reverb.server_executable import server_from_proto
from reverb.server_executable.text_places import Place, find_places

__all__ = ["Note", "Reading", "read_config"]

_MAX_TABLE_SIZE = 2**31 - 1
_SELECTORS = "fifo: true, lifo: true, uniform: true, heap { ... } or prioritized { ... }"
_TABLES = "tables"

# They belong to checkpoints, whose messages a config is made of.
_UNUSED_TABLE_FIELDS = (
    "deprecated_items",
    "num_deleted_episodes",
    "num_unique_samples",
    "signature",
)
_UNUSED_LIMITER_FIELDS = ("delete_count", "insert_count", "sample_count")


@dataclasses.dataclass(frozen=True)
class Note:
    """Something about one field of a config.

    Attributes:
      line: Where the field stands, or the message that lacks it. Counted from 1.
      text: A sentence that begins with the field, for example with `tables[0].max_size`.
    """

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclasses.dataclass(frozen=True)
class Reading:
    """What was made of a text.

    Attributes:
      config: A `ReverbServerConfig` message; not to be used if there are problems.
      problems: What keeps a server from being made of it, in the order of the text.
      unused: Fields that are set and have no effect, likewise.
    """

    config: Any
    problems: list[Note]
    unused: list[Note]


def read_config(text: str) -> Reading:
    """Reads a config and checks it."""
    places = find_places(text, repeated={_TABLES})
    config = protos.ReverbServerConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        return Reading(config, [_parse_problem(error, places)], [])
    known: dict[str, Place] = {}
    for place in places:
        known.setdefault(place.path, place)
    problems = [_note(known, path, text) for path, text in _problems(config, known)]
    unused = [_note(known, path, "has no effect here") for path in _unused(config)]
    return Reading(config, sorted(problems, key=_line), sorted(unused, key=_line))


def _parse_problem(error: text_format.ParseError, places: list[Place]) -> Note:
    line, column = error.GetLine() or 1, error.GetColumn() or 1
    before = bisect.bisect_right([(place.line, place.column) for place in places], (line, column))
    field = places[before - 1].path if before else "the config"
    # The text begins with the position, and may have the line after it.
    return Note(line, f"{field}: {str(error).removeprefix(f'{line}:{column} : ')}")


def _line(note: Note) -> int:
    return note.line


def _note(places: dict[str, Place], path: str, text: str) -> Note:
    nearest = path
    while nearest and nearest not in places:
        nearest = nearest.rpartition(".")[0]
    return Note(places[nearest].line if nearest else 1, f"{path} {text}")


def _problems(config: Any, places: dict[str, Place]) -> Iterator[tuple[str, str]]:
    if not 0 <= config.port <= MAX_PORT:
        yield "port", f"must be from 0 to {MAX_PORT}, got {config.port}"
    if not config.tables:
        yield _TABLES, "must hold at least one table, got none"
    first: dict[str, int] = {}
    for number, table in enumerate(config.tables):
        path = f"{_TABLES}[{number}]"
        for field, text in _table_problems(table):
            is_missing = f"{path}.{field}" not in places
            yield f"{path}.{field}", f"is missing: it {text}" if is_missing else text
        other = first.setdefault(table.table_name, number)
        if table.table_name and other != number:
            text = f"must differ from that of tables[{other}], got {table.table_name!r}"
            yield f"{path}.table_name", text


def _table_problems(table: Any) -> Iterator[tuple[str, str]]:
    if not table.table_name:
        yield "table_name", "must not be empty"
    for role in ("sampler", "remover"):
        for field, text in _selector_problems(getattr(table, role)):
            yield f"{role}{field}", text
    if not 1 <= table.max_size <= _MAX_TABLE_SIZE:
        yield "max_size", f"must be from 1 to {_MAX_TABLE_SIZE}, got {table.max_size}"
    if not table.HasField("rate_limiter"):
        yield "rate_limiter", "must give samples_per_insert, min_size_to_sample, min_diff, max_diff"
        return
    for field, text in _limiter_problems(table.rate_limiter):
        yield f"rate_limiter.{field}", text


def _selector_problems(options: Any) -> Iterator[tuple[str, str]]:
    kind = options.WhichOneof("distribution")
    if kind is None:
        yield "", f"must be {_SELECTORS}"
    elif getattr(options, kind) is False:
        yield f".{kind}", "must be true, got false"
    else:
        try:
            server_from_proto.selector_from_proto(options)
        except ReverbError as error:
            yield f".{kind}", f"is out of its range: {error}"


def _limiter_problems(limiter: Any) -> Iterator[tuple[str, str]]:
    ratio = limiter.samples_per_insert
    if not 0 < ratio < math.inf:
        yield "samples_per_insert", f"must be finite and greater than 0, got {ratio:g}"
    if limiter.min_size_to_sample < 1:
        yield "min_size_to_sample", f"must be at least 1, got {limiter.min_size_to_sample}"
    for field in ("min_diff", "max_diff"):
        if math.isnan(getattr(limiter, field)):
            yield field, "must be a number, got nan"


def _unused(config: Any) -> Iterator[str]:
    for number, table in enumerate(config.tables):
        path = f"{_TABLES}[{number}]"
        for field, _ in table.ListFields():
            if field.name in _UNUSED_TABLE_FIELDS:
                yield f"{path}.{field.name}"
        for field, _ in table.rate_limiter.ListFields():
            if field.name in _UNUSED_LIMITER_FIELDS:
                yield f"{path}.rate_limiter.{field.name}"
