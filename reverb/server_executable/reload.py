# SPDX-License-Identifier: Apache-2.0
"""Applies a changed config file to the running server."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from reverb._rollouts.settings import Rollouts
from reverb._server.table import arguments_of
from reverb._server.table_change import TableChange
from reverb.core import protos
from reverb.errors import ReverbError
from reverb.item_selectors import selector_settings
from reverb.server import Server
from reverb.server_executable.group import shard_of
from reverb.server_executable.options import OPTIONS
from reverb.server_executable.server_config import UNUSED_TABLE_FIELDS
from reverb.server_executable.server_from_proto import rate_limiter_from_proto, selector_from_proto
from reverb.server_executable.settings import Given, Settings, read_settings

__all__ = ["Reload", "reload_config"]

_LIMITER_FIELDS = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")
_TABLE_FIELDS = [field.name for field in protos.PriorityTableCheckpoint.DESCRIPTOR.fields]
# Fields of a table that can change while it runs; of the sampler, its parameters; of rollouts, all
# but their number and the columns of items.
_CHANGING_FIELDS = [
    field.name for field in dataclasses.fields(TableChange) if field.name in _TABLE_FIELDS
]
# Fields that only a restart changes.
_FIXED_FIELDS = [
    name for name in _TABLE_FIELDS if name not in (*_CHANGING_FIELDS, *UNUSED_TABLE_FIELDS)
]


@dataclasses.dataclass(frozen=True)
class Reload:
    """The outcome of a reload.

    Attributes:
      settings: Present settings of the server.
      lines: Messages for the operator.
      is_refused: Whether nothing has changed, because of a problem.
    """

    settings: Settings
    lines: list[str]
    is_refused: bool = False


@dataclasses.dataclass(frozen=True)
class _Change:
    """A changed value, with its argument of `configure_table`."""

    argument: str
    value: Any
    text: str


def reload_config(server: Server, given: Given, before: Settings) -> Reload:
    """Reads the config again, and changes the tables of the server. All or nothing.

    Blocks until the tables have changed. Never raises: problems are in the result. `before` are the
    settings of the start or of the last reload.
    """
    after = read_settings(given)
    name = given.source.name
    problems = after.problems or [
        f"{name}{text}"
        for text in [*_fixed_differences(before, after), *_differences_of_group(before, after)]
    ]
    if problems:
        return _refused(before, name, problems)
    try:
        # A shard has only a part of each table, so its numbers differ from those of the config.
        changes = {} if shard_of(after) is not None else _changes(server, after)
        problems = [f"{name}{text}" for text in _refusals(server, after, changes)]
        if problems:
            return _refused(before, name, problems)
        if changes:
            configure_tables(server, _table_changes(changes), dry_run=False)
    except ReverbError as error:
        return _refused(before, name, [f"{name}: {error}"])
    changed = [
        f"table {table}: {', '.join(change.text for change in of_table)}"
        for table, of_table in changes.items()
    ]
    line = f"reloaded {name}: {'; '.join(changed) or 'nothing is different'}"
    return Reload(after, [*after.notes, line])


def configure_tables(server: Server, changes: Mapping[str, TableChange], *, dry_run: bool) -> None:
    """Changes tables of a running server, all or nothing.

    Raises:
      InvalidArgumentError: If a change cannot be made. Nothing has changed then.
    """
    server.configure_tables(changes, dry_run=dry_run)


def _refused(before: Settings, name: str, problems: list[str]) -> Reload:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [*problems, f"not reloaded: {name} has {count}; nothing has changed"]
    return Reload(before, lines, is_refused=True)


def _refusals(
    server: Server, after: Settings, changes: Mapping[str, list[_Change]]
) -> Iterator[str]:
    """Problems with changes, checked for one table at a time, so that each has its line."""
    for table, change in _table_changes(changes).items():
        try:
            configure_tables(server, {table: change}, dry_run=True)
        except ReverbError as error:
            path = _path_of(after, table)
            yield _at(after, path, f"{path}: {error}")


def _table_changes(changes: Mapping[str, list[_Change]]) -> dict[str, TableChange]:
    return {
        table: TableChange(**{it.argument: it.value for it in of_table})
        for table, of_table in changes.items()
    }


def _fixed_differences(before: Settings, after: Settings) -> Iterator[str]:
    """Differences that need a restart, with their lines."""
    for option in OPTIONS:
        old, new = before[option.name], after[option.name]
        if old != new:
            text = f"{option.field} {_shown(old)} -> {_shown(new)} needs a restart"
            yield _at(after, option.field, text)
    old_tables = {table.table_name: table for table in before.tables}
    new_tables = {table.table_name: table for table in after.tables}
    for name, new in new_tables.items():
        path = _path_of(after, name)
        if name not in old_tables:
            yield _at(after, path, f"{path}: table {name} is new, which needs a restart")
            continue
        for field in _fixed_fields(old_tables[name], new):
            yield _at(after, f"{path}.{field}", f"{path}.{field} is different: needs a restart")
    for name in old_tables:
        if name not in new_tables:
            yield f": table {name} is missing, and its removal needs a restart"


def _differences_of_group(before: Settings, after: Settings) -> Iterator[str]:
    """Changed tables of a shard, with their lines: a single shard must not change alone."""
    if shard_of(before) is None:
        return
    old_tables = {table.table_name: table for table in before.tables}
    for table in after.tables:
        name = table.table_name
        if table != old_tables.get(name, table):
            path = _path_of(after, name)
            text = (
                f"{path} is different, and table {name} is part of a group; change it with "
                "`reverb configure` at the address of the group, which changes all shards"
            )
            yield _at(after, path, text)


def _fixed_fields(old: Any, new: Any) -> Iterator[str]:
    if selector_settings(old.sampler).kind != selector_settings(new.sampler).kind:
        yield "sampler"
    of_rollouts = [
        (it.HasField("rollouts"), settings.num_rollouts, [*settings.item_columns])
        for it in (old, new)
        for settings in [it.rollouts.settings]
    ]
    if of_rollouts[0] != of_rollouts[1]:
        yield "rollouts"
    for field in _FIXED_FIELDS:
        if getattr(old, field) != getattr(new, field):
            yield field


def _changes(server: Server, after: Settings) -> dict[str, list[_Change]]:
    """Differences from the running tables, by table name.

    The running tables may differ from the earlier config: clients change settings, and checkpoints
    restore them.
    """
    present = {table.name: table.internal_settings for table in server._tables}
    changes = {}
    for table in after.tables:
        name = table.table_name
        of_table = list(_changes_of(present[name], table))
        if of_table:
            changes[name] = of_table
    return changes


def _changes_of(old: Any, new: Any) -> Iterator[_Change]:
    """Yields the differences of two `PriorityTableCheckpoint` messages that can change."""
    before, after = arguments_of(old), arguments_of(new)
    for arguments in (before, after):
        # 0 and less mean no limit.
        arguments["max_times_sampled"] = max(0, arguments["max_times_sampled"])
    for field in _CHANGING_FIELDS:
        if field == "rate_limiter":
            yield from _changes_of_limiter(old.rate_limiter, new.rate_limiter)
        elif field == "sampler":
            yield from _changes_of_sampler(old.sampler, new.sampler)
        elif field == "rollouts":
            yield from _changes_of_rollouts(before[field], after[field])
        elif before[field] != after[field]:
            yield _changed(field, before[field], after[field])


def _changes_of_limiter(old: object, new: object) -> Iterator[_Change]:
    before, after = _limiter(old), _limiter(new)
    if before != after:
        text = ", ".join(
            f"rate_limiter.{field} {_shown(before[field])} -> {_shown(after[field])}"
            for field in _LIMITER_FIELDS
            if before[field] != after[field]
        )
        yield _Change("rate_limiter", rate_limiter_from_proto(new), text)


def _changes_of_sampler(old: object, new: object) -> Iterator[_Change]:
    before, after = selector_settings(old).parameters, selector_settings(new).parameters
    changed = [name for name, value in after.items() if value != before.get(name)]
    if changed == ["priority_exponent"]:
        yield _changed(changed[0], before.get(changed[0]), after[changed[0]])
    elif changed:
        values = ((name, _shown(before.get(name)), _shown(after[name])) for name in changed)
        text = ", ".join(f"{name} {old} -> {new}".replace("'", "") for name, old, new in values)
        yield _Change("sampler", selector_from_proto(new), text)


def _changes_of_rollouts(old: Rollouts | None, new: Rollouts | None) -> Iterator[_Change]:
    if old is None or new is None:
        return
    before, after = (
        dataclasses.asdict(it) | {"min_rollouts": it.min_rollouts or it.num_rollouts}
        for it in (old, new)
    )
    if before != after:
        text = ", ".join(
            f"rollouts.{name} {_shown(before[name])} -> {_shown(value)}".replace("'", "")
            for name, value in after.items()
            if value != before[name]
        )
        yield _Change("rollouts", new, text)


def _changed(argument: str, old: object, new: object) -> _Change:
    return _Change(argument, new, f"{argument} {_shown(old)} -> {_shown(new)}")


def _limiter(message: object) -> dict[str, float]:
    return {field: getattr(message, field) for field in _LIMITER_FIELDS}


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else repr(value)


def _path_of(settings: Settings, table: str) -> str:
    names = [it.table_name for it in settings.tables]
    return f"tables[{names.index(table)}]"


def _at(settings: Settings, path: str, text: str) -> str:
    """Returns a text with the line of its field in front; the config's name is added later."""
    line = settings.parsed.line_of(path)
    return f": {text}" if line is None else f", line {line}: {text}"
