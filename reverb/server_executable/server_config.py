# SPDX-License-Identifier: Apache-2.0
"""Reads and checks the config of a server, a `ReverbServerConfig` message in text form.

Short ways to write tables are translated first (`config_spellings.py`).

The rules are those of `Table` and the rate limiters. They are checked before any table is made, so
that one run reports every problem with its line.
"""

import bisect
import dataclasses
from collections.abc import Iterator
from typing import Any

from google.protobuf import text_format

from reverb.core import native, protos
from reverb.errors import ReverbError
from reverb.server_executable import server_from_proto
from reverb.server_executable.config_spellings import parse_written, selector_spellings
from reverb.server_executable.field_positions import FieldPosition, find_field_positions
from reverb.server_executable.options import OPTIONS

__all__ = ["UNUSED_TABLE_FIELDS", "ConfigNote", "ParsedConfig", "read_config"]

_MAX_TABLE_SIZE = 2**31 - 1
_LIMITERS = (
    "samples_per_insert, min_size_to_sample, min_diff, max_diff, or one of min_size, "
    "sample_to_insert_ratio, queue, stack"
)
_TABLES = "tables"

# Fields that only checkpoints use; a config shares their messages.
UNUSED_TABLE_FIELDS = (
    "deprecated_items",
    "largest_priority",
    "num_deleted_episodes",
    "num_unique_samples",
    "total_inserts",
    "total_samples",
)
# A limiter with valid values in all fields.
_GOOD_LIMITER = {
    "samples_per_insert": 1.0,
    "min_size_to_sample": 1,
    "min_diff": 0.0,
    "max_diff": 0.0,
}
_UNUSED_LIMITER_FIELDS = ("delete_count", "insert_count", "sample_count")


@dataclasses.dataclass(frozen=True)
class ConfigNote:
    """A remark on one field of a config.

    Attributes:
      line: Line of the field, or of the message that lacks it. Counted from 1.
      text: A sentence that begins with the field, for example with `tables[0].max_size`.
    """

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclasses.dataclass(frozen=True)
class ParsedConfig:
    """A config and the remarks on it.

    Attributes:
      config: A `ReverbServerConfig` message. Do not use it if there are problems.
      problems: Problems that keep a server from starting, in the order of the text.
      unused: Fields that are set without effect, in the order of the text.
      positions: Positions of the fields by path, for example `tables[0].max_size`.
      is_complete: Whether the text could be parsed to its end.
    """

    config: Any
    problems: list[ConfigNote]
    unused: list[ConfigNote]
    positions: dict[str, FieldPosition]
    is_complete: bool = True

    def line_of(self, path: str) -> int | None:
        """Returns the line of a field, or of the message that lacks it; `None` for the config."""
        return _line_of(self.positions, path)


def read_config(text: str) -> ParsedConfig:
    """Parses and checks a config. Never raises: errors are `problems` of the result."""
    positions = find_field_positions(text, repeated={_TABLES})
    known: dict[str, FieldPosition] = {}
    for position in positions:
        known.setdefault(position.path, position)
    try:
        config, found = parse_written(text)
    except text_format.ParseError as error:
        config = protos.ReverbServerConfig()
        return ParsedConfig(config, [_parse_problem(error, positions)], [], known, False)
    found += _problems(config, known)
    problems = [_note(known, path, text) for path, text in found]
    unused = [_note(known, path, "has no effect here") for path in _unused(config)]
    return ParsedConfig(config, sorted(problems, key=_line), sorted(unused, key=_line), known)


def _parse_problem(error: text_format.ParseError, positions: list[FieldPosition]) -> ConfigNote:
    line, column = error.GetLine() or 1, error.GetColumn() or 1
    before = bisect.bisect_right([(it.line, it.column) for it in positions], (line, column))
    field = positions[before - 1].path if before else "the config"
    # Protobuf's text begins with the position.
    return ConfigNote(line, f"{field}: {str(error).removeprefix(f'{line}:{column} : ')}")


def _line(note: ConfigNote) -> int:
    return note.line


def _note(positions: dict[str, FieldPosition], path: str, text: str) -> ConfigNote:
    return ConfigNote(_line_of(positions, path) or 1, f"{path} {text}")


def _line_of(positions: dict[str, FieldPosition], path: str) -> int | None:
    nearest = path
    while nearest and nearest not in positions:
        nearest = nearest.rpartition(".")[0]
    return positions[nearest].line if nearest else None


def _problems(config: Any, positions: dict[str, FieldPosition]) -> Iterator[tuple[str, str]]:
    for option in OPTIONS:
        value = option.read(config)
        problem = None if value is None else option.problem(value)
        if problem is not None:
            yield option.field, problem
    if not config.tables:
        yield _TABLES, "must hold at least one table, got none"
    first: dict[str, int] = {}
    for number, table in enumerate(config.tables):
        path = f"{_TABLES}[{number}]"
        found = list(_table_problems(table))
        for field, text in found:
            is_missing = f"{path}.{field}" not in positions
            yield f"{path}.{field}", f"is missing: it {text}" if is_missing else text
        if not found:
            try:
                server_from_proto.tables_from_proto([table])
            except ReverbError as error:
                yield path, f"cannot be made: {error}"
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
    if table.max_bytes < 0:
        yield "max_bytes", f"must be at least 1, or 0 for no limit, got {table.max_bytes}"
    try:
        server_from_proto.signature_from_proto(table.signature)
    except ReverbError as error:
        yield "signature", f"is no nest of specs: {error}"
    if not table.HasField("rate_limiter"):
        yield "rate_limiter", f"must give {_LIMITERS}"
        return
    for field, text in _limiter_problems(table.rate_limiter):
        yield f"rate_limiter.{field}", text


def _selector_problems(options: Any) -> Iterator[tuple[str, str]]:
    kind = options.WhichOneof("distribution")
    if kind is None:
        yield "", f"must be {selector_spellings()}"
    elif getattr(options, kind) is False:
        yield f".{kind}", "must be true, got false"
    else:
        try:
            server_from_proto.selector_from_proto(options)
        except ReverbError as error:
            yield f".{kind}", f"is out of its range: {error}"


def _limiter_problems(limiter: object) -> Iterator[tuple[str, str]]:
    # The core reports one problem at a time, so each field is checked in an otherwise valid one.
    for field in _GOOD_LIMITER:
        try:
            native.RateLimiter(**_GOOD_LIMITER | {field: getattr(limiter, field)})
        except ReverbError as error:
            yield field, str(error).removeprefix(f"{field} ").rstrip(".")


def _unused(config: Any) -> Iterator[str]:
    for number, table in enumerate(config.tables):
        path = f"{_TABLES}[{number}]"
        for field, _ in table.ListFields():
            is_empty = field.name == "signature" and not table.signature.WhichOneof("kind")
            if is_empty or field.name in UNUSED_TABLE_FIELDS:
                yield f"{path}.{field.name}"
        for field, _ in table.rate_limiter.ListFields():
            if field.name in _UNUSED_LIMITER_FIELDS:
                yield f"{path}.rate_limiter.{field.name}"
        for field, _ in table.rollouts.ListFields():
            if field.name != "settings":
                yield f"{path}.rollouts.{field.name}"
        if table.rollouts.settings.num_columns:
            yield f"{path}.rollouts.settings.num_columns"
